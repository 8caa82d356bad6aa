"""Tests the import: the API's rules, one transaction, and the file of rejects."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from conftest import MOANA, ROOT, Start
from import_file import import_file
from support import Execute, set_for_database

from service.database import query_files
from service.errors import Malformed, OperatorError
from service.queries import EXPECTED
from service.transfer import importing
from service.transfer.importing import ImportResult, import_rows
from service.transfer.rejects import Rejects
from service.transfer.rows import FileRow

Import = Callable[..., ImportResult]

OWN = {
    "id": 7,
    "version": 3,
    "created_at": "2001-02-03T04:05:06.000007Z",
    "updated_at": "2002-02-03T04:05:06Z",
}
COUNT = "select count(*) from movies"


@pytest.fixture
def rejects(tmp_path: Path) -> Path:
    """Return the path of the file of rejects."""
    return tmp_path / "rejects.ndjson"


@pytest.fixture
def run(database: str, tmp_path: Path, rejects: Path) -> Import:
    """Import NDJSON rows, each a movie or a text."""

    def do(*rows: Any, allow_rejects: bool = False, dry_run: bool = False) -> ImportResult:
        path = tmp_path / "movies.ndjson"
        path.write_text("".join([f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows]))
        return import_file(database, path, rejects, allow_rejects=allow_rejects, dry_run=dry_run)

    return do


def written(path: Path) -> list[dict[str, Any]]:
    """Read the rejected rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_become_movies(run: Import, execute: Execute, rejects: Path) -> None:
    """They are as if created by the API; there is no file of rejects."""
    result = run(
        MOANA, MOANA | {"title": 'a\t"\\\n\r|é🎬', "genres": ['"', "\\", "a,b", "{}", "a\tb"]}
    )

    assert (result.imported, result.rejected, result.is_accepted) == (2, 0, True)
    assert execute("select id, title, year, runtime, genres, version from movies order by id") == [
        (1, "Moana", 2016, 107, ["animation"], 1),
        (2, 'a\t"\\\n\r|é🎬', 2016, 107, ['"', "\\", "a,b", "{}", "a\tb"], 1),
    ]
    assert not rejects.exists()


def test_odd_titles_are_kept_or_refused(run: Import, execute: Execute) -> None:
    """Titles are stored unchanged, or refused as the API does."""
    odd = ["\\.", "\\N", "a\u2028b", "\x01", "\ufeff", "'", "$$"]

    result = run(*[MOANA | {"title": title} for title in ["", *odd]], allow_rejects=True)

    assert execute("select title from movies order by id") == [(title,) for title in odd]
    assert result.rejected == 1


def test_one_rejected_row_stops_all(run: Import, execute: Execute, rejects: Path) -> None:
    """By default no movie is imported, and all reasons of all rows are reported."""
    result = run(MOANA, "[]", MOANA | {"year": 1, "genres": []}, MOANA | {"year": "1999"})

    assert (result.imported, result.rejected, result.is_accepted) == (1, 3, False)
    assert execute(COUNT) == [(0,)]
    assert written(rejects) == [
        {
            "line": 2,
            "reasons": ["the row must be one JSON object"],
            "row": "[]",
        },
        {
            "line": 3,
            "reasons": ["year: must be 1888 or later", "genres: must be 1 to 5 genres"],
            "row": MOANA | {"year": 1, "genres": []},
        },
        {
            "line": 4,
            "reasons": ['"year" must be an integer, found a string'],
            "row": MOANA | {"year": "1999"},
        },
    ]


def test_good_rows_are_imported_with_allow_rejects(
    run: Import, execute: Execute, rejects: Path
) -> None:
    """The file of rejects has only rejects of the last import."""
    result = run("{", MOANA, "{", allow_rejects=True)

    assert (result.imported, result.rejected, result.is_accepted) == (1, 2, True)
    assert execute(COUNT) == [(1,)]
    assert rejects.exists()
    run(MOANA)
    assert not rejects.exists()


@pytest.mark.parametrize("row", [r'{"title": "\ud800"}', '{"year": %s}' % ("9" * 40)])
def test_any_row_can_be_written_as_a_reject(run: Import, rejects: Path, row: str) -> None:
    """Also a row with a lone surrogate, or with a number beyond 64 bits."""
    run(row)

    assert written(rejects)[0]["row"] == json.loads(row)


def test_a_deep_row_can_be_written_as_a_reject(run: Import, rejects: Path) -> None:
    """A row that is nested too deep to be encoded is written without its text."""
    depths = range(100, 1000, 25)

    run(*['{"a": ' + "[" * depth + "]" * depth + "}" for depth in depths])

    assert [reject["line"] for reject in written(rejects)] == [*range(1, len(depths) + 1)]


def test_rows_that_the_database_refuses_are_rejects(
    run: Import, execute: Execute, rejects: Path
) -> None:
    """For a rule that a DBA added, each reject has the rule's name and its line."""
    execute("alter table movies add constraint movies_title_once unique (title)")
    rows = [MOANA | {"title": f"movie {n % 90}"} for n in range(100)]

    result = run(*rows, allow_rejects=True)

    assert (result.imported, result.rejected) == (90, 10)
    assert execute(COUNT) == [(90,)]
    found = written(rejects)
    assert [reject["line"] for reject in found] == list(range(91, 101))
    assert found[0]["row"] == rows[90]
    assert "movies_title_once" in found[0]["reasons"][0]
    assert "(title)=(movie 0) already exists" in found[0]["reasons"][0]


def test_rejects_are_in_the_order_of_the_file(run: Import, execute: Execute, rejects: Path) -> None:
    """Rejects of the service and of the database are sorted together."""
    execute("alter table movies add constraint movies_year_early check (year < 2000)")
    run(MOANA, "{", MOANA, "{")

    assert [reject["line"] for reject in written(rejects)] == [1, 2, 3, 4]


def test_rows_of_an_export_keep_ids_versions_and_times(run: Import, execute: Execute) -> None:
    """The values of the file are stored."""
    run(MOANA | OWN)

    assert execute("select id, version, created_at::text, updated_at::text from movies") == execute(
        "select 7::bigint, 3, '2001-02-03 04:05:06.000007+00'::timestamptz::text,"
        " '2002-02-03 04:05:06+00'::timestamptz::text"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"version": ...},
            "version missing: expected all four of id, version, created_at",
        ),
        ({"id": "7"}, '"id" must be an integer, found a string'),
        ({"id": 0}, "id: must be 1 to 999999999999999999"),
        ({"id": 10**18}, 'the number in "id" is too big'),
        ({"version": 0}, "version: must be 1 to 2147483647"),
        ({"version": True}, '"version" must be an integer, found a boolean'),
        ({"created_at": None}, "created_at: must not be null"),
        ({"created_at": 5}, '"created_at" must be a string like "2026-01-05T09:00:00Z", found an'),
        ({"updated_at": "2001-02-03"}, '"updated_at" must be a time of RFC 3339'),
        ({"updated_at": "2001-02-30T00:00:00Z"}, '"updated_at" must be a time of RFC 3339'),
        ({"updated_at": "0001-01-01T00:00:00+14:00"}, '"updated_at" must be a time of RFC 3339'),
        ({"updated_at": "2001-02-03T04:05:06.1234567Z"}, '"updated_at" must be a time of RFC 3339'),
        ({"year": 1, "id": 0}, "id: must be 1 to 999999999999999999"),
    ],
)
def test_rows_unlike_an_export_are_rejected(
    run: Import, rejects: Path, changes: dict[str, Any], reason: str
) -> None:
    """A row has all four read-only fields or none, each as in a response."""
    row = {name: value for name, value in (MOANA | OWN | changes).items() if value is not ...}
    run(row)

    assert written(rejects)[0]["reasons"][0].startswith(reason)


def test_an_id_that_exists_is_rejected(run: Import, rejects: Path) -> None:
    """The primary key rejects it, also if the id is twice in the file."""
    run(MOANA | OWN)

    run(MOANA | OWN, MOANA | OWN | {"id": 8}, MOANA | OWN | {"id": 8}, allow_rejects=True)

    found = written(rejects)
    assert [reject["line"] for reject in found] == [1, 3]
    assert all("movies_pkey" in reject["reasons"][0] for reject in found)


async def test_new_movies_get_ids_beyond_the_imported(start: Start, run: Import) -> None:
    """A running service never meets an imported id."""
    client = await start()
    run(*[MOANA | OWN | {"id": n} for n in (3, 1, 2)])

    response = await client.post("/v1/movies", json=MOANA)

    assert response.headers["Location"] == "/v1/movies/4"


def test_the_sequence_goes_beyond_the_imported_ids_and_never_back(
    run: Import, execute: Execute
) -> None:
    """It moves at once, by any distance; smaller ids do not change it."""
    execute("select setval('movies_id_seq', 1000)")
    run(MOANA | OWN)
    assert execute("select nextval('movies_id_seq')") == [(1001,)]

    run(MOANA | OWN | {"id": 10**18 - 1})
    assert execute("select nextval('movies_id_seq')") == [(10**18,)]


def test_a_dry_run_leaves_no_movie(run: Import, execute: Execute, rejects: Path) -> None:
    """Its result has the same figures and reasons as an import."""
    execute("alter table movies add constraint movies_year_early check (year < 2010)")
    old = MOANA | {"year": 2000}
    run(old | OWN)
    rows = (old, MOANA, "{", old | OWN, old | OWN | {"id": 8}, old | OWN | {"id": 8})

    result = run(*rows, allow_rejects=True, dry_run=True)
    foreseen = [(reject["line"], reject["reasons"][0][:60]) for reject in written(rejects)]

    assert execute("select id from movies") == [(7,)]
    assert (result.imported, result.rejected) == (2, 4)
    assert [line for line, _ in foreseen] == [2, 3, 4, 6]
    real = run(*rows, allow_rejects=True)
    assert (real.imported, real.rejected) == (2, 4)
    assert [(r["line"], r["reasons"][0][:60]) for r in written(rejects)] == foreseen


def test_a_dry_run_sees_foreign_keys_and_triggers(
    run: Import, execute: Execute, rejects: Path
) -> None:
    """It is an import with a rollback at the end."""
    execute("create table years (year integer primary key)")
    execute("insert into years values (2001)")
    execute(
        "alter table movies add constraint movies_year_known"
        " foreign key (year) references years deferrable initially deferred"
    )
    execute(
        "create function refuse() returns trigger language plpgsql as $$ begin"
        " if new.title = 'b' then raise exception 'no such title'; end if; return new; end $$;"
        " create trigger refuse before insert on movies for each row execute function refuse()"
    )

    run(MOANA, MOANA | {"title": "b"}, MOANA | {"year": 2001}, dry_run=True)

    found = written(rejects)
    assert [reject["line"] for reject in found] == [1, 2]
    assert "movies_year_known" in found[0]["reasons"][0]
    assert "no such title" in found[1]["reasons"][0]


def test_rows_with_and_without_ids_may_alternate(run: Import, execute: Execute) -> None:
    """New movies get higher ids than those of the file."""
    run(MOANA, MOANA | OWN, MOANA, MOANA | OWN | {"id": 9})

    assert execute("select id, version from movies order by id") == [
        (7, 3),
        (9, 3),
        (10, 1),
        (11, 1),
    ]


def test_more_rows_than_one_chunk(
    run: Import, execute: Execute, rejects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks follow each other, in order, with the lines of the file."""
    monkeypatch.setattr(importing, "MAX_CHUNK_ROWS", 10)
    execute("alter table movies add constraint movies_title_short check (length(title) < 8)")
    rows = [MOANA | {"title": f"movie {n}"} for n in range(1, 105)]

    result = run(*rows, allow_rejects=True)

    assert (result.imported, result.rejected) == (9, 95)
    assert [reject["line"] for reject in written(rejects)] == list(range(10, 105))
    assert execute("select title from movies order by id") == [
        (f"movie {n}",) for n in range(1, 10)
    ]


def test_a_chunk_is_read_while_the_one_before_is_inserted(
    database: str, execute: Execute, monkeypatch: pytest.MonkeyPatch, rejects: Path
) -> None:
    """The first chunk waits for a lock that is released when the second chunk is read."""
    monkeypatch.setattr(importing, "MAX_CHUNK_ROWS", 1)
    blocker = psycopg2.connect(database, options="-c idle_in_transaction_session_timeout=5s")
    blocker.cursor().execute("lock table movies in access exclusive mode")
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
    deadline = time.monotonic() + 5

    def rows() -> Iterator[FileRow]:
        yield FileRow(1, MOANA, MOANA, 0)
        while not execute(waiting):
            assert time.monotonic() < deadline, "the first chunk did not wait meanwhile"
        blocker.close()
        yield FileRow(2, MOANA, MOANA, 0)

    result = import_rows(
        database,
        query_files.load(ROOT / "queries", EXPECTED),
        rows(),
        Rejects(rejects),
        allow_rejects=False,
        dry_run=False,
        report=lambda _: None,
    )

    assert result.imported == 2


def test_the_planner_knows_the_imported_rows(run: Import, execute: Execute) -> None:
    """The table is analyzed at the end."""
    run(*[MOANA] * 50)

    assert execute("select reltuples from pg_class where relname = 'movies'") == [(50,)]


def test_an_import_is_done_without_analyze(run: Import, execute: Execute) -> None:
    """If `analyze` fails, the movies are imported, and the reason is reported."""
    execute(
        "create function fail(text[]) returns text language plpgsql"
        " immutable as $$ begin if current_query() ~ 'analyze' then raise 'no'; end if;"
        " return 'a'; end $$; create index on movies (fail(genres))"
    )

    result = run(MOANA)

    assert result.analyze_error == "no"
    assert execute(COUNT) == [(1,)]


def test_rejects_that_cannot_be_written_stop_the_import(
    run: Import, execute: Execute, rejects: Path
) -> None:
    """On a full disk no movie is imported, also with allow_rejects."""
    rejects.symlink_to("/dev/full")

    with pytest.raises(OperatorError, match="cannot be written: No space left on device"):
        run("{", MOANA, allow_rejects=True)

    assert execute(COUNT) == [(0,)]


@pytest.mark.parametrize("content", ["precious\n", None])
def test_rejects_do_not_follow_a_link(
    run: Import, execute: Execute, rejects: Path, content: str | None
) -> None:
    """Nobody who can write to the folder can make an import write another file."""
    other = rejects.with_name("other")
    if content:
        other.write_text(content)
    rejects.symlink_to(other)

    with pytest.raises(OperatorError, match="cannot be written: it is a symbolic link"):
        run("{", MOANA, allow_rejects=True)

    assert (other.read_text() if other.exists() else None) == content
    assert execute(COUNT) == [(0,)]


def test_a_failed_commit_keeps_the_earlier_rejects(
    database: str, execute: Execute, rejects: Path
) -> None:
    """It is unknown whether this import was committed."""
    rejects.write_text("earlier\n")
    others = "pid <> pg_backend_pid() and datname = current_database()"

    def break_connection(_: int) -> None:
        execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}")

    with pytest.raises(OperatorError, match="during the commit"):
        import_rows(
            database,
            query_files.load(ROOT / "queries", EXPECTED),
            iter([FileRow(1, {}, Malformed("wrong"), 0), FileRow(2, MOANA, MOANA, 0)]),
            Rejects(rejects),
            allow_rejects=True,
            dry_run=False,
            report=break_connection,
        )

    assert [path.read_text() for path in rejects.parent.iterdir()] == ["earlier\n"]


def test_a_database_without_migrations_is_reported(empty_database: str, rejects: Path) -> None:
    """The error says how to create the table."""
    sample = ROOT / "samples" / "movies.csv"
    with pytest.raises(OperatorError, match=r"is it migrated\? python -m service migrate"):
        import_file(empty_database, sample, rejects)


@pytest.mark.parametrize(
    "timeout", ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"]
)
def test_the_timeouts_of_a_database_do_not_apply(
    run: Import, execute: Execute, timeout: str
) -> None:
    """They are for requests; an import may take longer."""
    execute(
        f"alter table movies add constraint movies_rule check (current_setting('{timeout}') = '0')"
    )
    set_for_database(execute, f"{timeout} = '5s'")

    assert run(MOANA).imported == 1


def test_the_sample_is_imported_whole(database: str, execute: Execute, rejects: Path) -> None:
    """samples/movies.csv has no invalid row and no movie twice."""
    result = import_file(database, ROOT / "samples" / "movies.csv", rejects)

    assert result.rejected == 0
    assert result.imported >= 250
    assert execute("select count(distinct (title, year)) from movies") == [(result.imported,)]
