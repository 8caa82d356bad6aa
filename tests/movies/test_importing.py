"""Tests the import: the API's rules, one transaction, and the file of rejects."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MOANA, Start
from import_file import import_file
from support import Execute, Patch, add_trigger, hold, set_for_database

from service.errors import OperatorError
from service.movies import importing
from service.movies.importing import ImportResult

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

    def do(*rows: Any, **options: bool) -> ImportResult:
        path = tmp_path / "movies.ndjson"
        path.write_text("".join([f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows]))
        return import_file(database, path, rejects, **options)

    return do


def written(path: Path) -> list[dict[str, Any]]:
    """Read the rejected rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_become_movies(run: Import, execute: Execute, rejects: Path) -> None:
    """They are as if created by the API; a file of rejects of another import is removed."""
    rejects.write_text("")
    odd = ['a\t"\\\n\r|é🎬', "\\.", "\\N", "a\u2028b", "x\x01", "\ufeffx", "'", "$$"]
    genres = ['"', "\\", "a,b", "{}", "a\tb"]

    result = run(MOANA, *[MOANA | {"title": title, "genres": genres} for title in odd])

    assert (result.read, result.created, result.rejected) == (9, 9, 0)
    first, *others = execute("select title, year, runtime, genres, version from movies order by id")
    assert first == ("Moana", 2016, 107, ["animation"], 1)
    assert others == [(title, 2016, 107, genres, 1) for title in odd]
    assert not rejects.exists()


def test_one_rejected_row_stops_all(run: Import, execute: Execute, rejects: Path) -> None:
    """By default no movie is imported, and all reasons of all rows are reported."""
    result = run(MOANA, "[]", MOANA | {"year": 1, "genres": []}, MOANA | {"year": "1999"})

    assert (result.read, result.created, result.rejected) == (4, 1, 3)
    assert execute(COUNT) == [(0,)]
    assert written(rejects) == [
        {"line": 2, "reasons": ["the row must be one JSON object"], "row": "[]"},
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


def test_any_row_can_be_written_as_a_reject(run: Import, rejects: Path) -> None:
    """Also one with a lone surrogate or a huge number; one that is nested too deep, without it."""
    odd = [r'{"title": "\ud800é"}', '{"year": %s}' % ("9" * 40)]
    depths = range(100, 1000, 25)

    run(*odd, *['{"a": ' + "[" * depth + "]" * depth + "}" for depth in depths])

    found = written(rejects)
    assert [reject["row"] for reject in found[:2]] == [json.loads(row) for row in odd]
    assert [reject["line"] for reject in found] == [*range(1, len(depths) + 3)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": ...}, "version: is required"),
        ({"id": "7", "x": 1}, 'x: unknown field "x"; a movie has title, year'),
        ({"id": "7"}, '"id" must be an integer, found a string'),
        ({"id": 0}, "id: must be 1 to 999999999999999999"),
        ({"created_at": None}, "created_at: must not be null"),
        ({"updated_at": "2001-02-03"}, '"updated_at" must be a time of RFC 3339'),
        ({"updated_at": "2001-02-30T00:00:00Z"}, '"updated_at" must be a time of RFC 3339'),
        ({"updated_at": "0001-01-01T00:00:00+14:00"}, '"updated_at" must be a time of RFC 3339'),
    ],
)
def test_rows_unlike_an_export_are_rejected(
    run: Import, rejects: Path, changes: dict[str, Any], reason: str
) -> None:
    """A row has all four read-only fields or none, each as in a response."""
    row = {name: value for name, value in (MOANA | OWN | changes).items() if value is not ...}
    run(row)

    assert written(rejects)[0]["reasons"][0].startswith(reason)


async def test_new_movies_get_ids_beyond_the_imported(
    start: Start, run: Import, execute: Execute
) -> None:
    """A running service never meets an imported id, nor do rows without one."""
    client = await start()
    run(MOANA, *[MOANA | OWN | {"id": n} for n in (3, 1, 2)], MOANA)

    response = await client.post("/v1/movies", json=MOANA)

    assert execute("select count(*), max(id) from movies") == [(6, 6)]
    assert response.headers["Location"] == "/v1/movies/6"


def test_a_dry_run_rejects_as_an_import_does(
    run: Import, execute: Execute, rejects: Path, monkeypatch: Patch
) -> None:
    """It leaves no movie, but sees deferred foreign keys and triggers, too, in several chunks."""
    monkeypatch.setattr(importing, "MAX_CHUNK_ROWS", 2)
    execute(
        "create table years (year integer primary key); insert into years values (2001), (2016);"
        " alter table movies add constraint movies_year_known"
        " foreign key (year) references years deferrable initially deferred"
    )
    add_trigger(
        execute, "if new.title = 'b' then raise exception 'no such title'; end if; return new;"
    )
    run(MOANA | OWN)
    rows = (MOANA, "{", *(MOANA | change for change in ({"title": "b"}, {"year": 2002}, OWN)))

    foreseen = run(*rows, allow_rejects=True, dry_run=True)
    reasons = [reject["reasons"][0] for reject in written(rejects)]
    before = execute(COUNT)
    real = run(*rows, allow_rejects=True)

    assert before == [(1,)]
    counts = [(each.read, each.created, each.rejected) for each in (foreseen, real)]
    assert counts == [(5, 1, 4)] * 2
    assert "no such title" in reasons[1]
    assert "movies_year_known" in reasons[2]
    assert reasons[3] == "id: another movie has it"
    assert [reject["line"] for reject in written(rejects)] == [2, 3, 4, 5]


def test_taken_rows_are_found_before_they_are_inserted(
    run: Import, execute: Execute, rejects: Path
) -> None:
    """To find each by inserting takes 20 times as long; `--update` is named for external ids."""
    rows = [*(identify(number) for number in range(50)), MOANA | OWN | {"external_id": "b:1"}]
    run(*rows)
    drawn = "select pg_sequence_last_value('movies_id_seq')"
    before = execute(drawn)[0][0]
    new = identify(99)

    result = run(*rows, new, new, allow_rejects=True)

    assert (result.created, result.rejected) == (1, 52)
    assert execute(drawn) == [(before + 1,)]  # each row of each insert takes one
    reasons = [reject["reasons"] for reject in written(rejects)]
    assert reasons[0] == ["external_id: another movie has it; --update would change that movie"]
    assert reasons[50] == ["id: another movie has it", *reasons[0]]
    assert reasons[51] == reasons[0]  # by the row before


def test_a_row_may_repeat_the_id_of_a_rejected_one(run: Import, execute: Execute) -> None:
    """The first row is refused for its own id, so nothing has the external id of both."""
    run(MOANA | OWN)
    row = identify(1)

    result = run(row | OWN, row, allow_rejects=True)

    assert (result.created, result.rejected) == (1, 1)
    assert execute("select count(*) from movies where external_id is not null") == [(1,)]


def test_the_planner_knows_the_imported_rows(run: Import, execute: Execute) -> None:
    """The table is analyzed at the end."""
    run(*[MOANA] * 50)

    assert execute("select reltuples from pg_class where relname = 'movies'") == [(50,)]


def test_an_import_does_not_wait_to_analyze(database: str, run: Import, execute: Execute) -> None:
    """`create index concurrently` has this lock, and waits for the import."""
    with hold(database, "lock table movies in share update exclusive mode"):
        run(MOANA)

    assert execute(COUNT) == [(1,)]


def test_rejects_that_cannot_be_written_stop_the_import(
    run: Import, execute: Execute, rejects: Path
) -> None:
    """On a full disk no movie is imported, also with allow_rejects."""
    rejects.symlink_to("/dev/full")

    with pytest.raises(OperatorError, match="cannot be written: No space left on device"):
        run("{", MOANA, allow_rejects=True)

    assert execute(COUNT) == [(0,)]


def test_rejects_do_not_follow_a_link(run: Import, rejects: Path) -> None:
    """Nobody who can write to the folder can make an import write another file."""
    other = rejects.with_name("other")
    other.write_text("precious")
    rejects.symlink_to(other)

    run("{", MOANA)

    assert other.read_text() == "precious"
    assert [reject["line"] for reject in written(rejects)] == [1]


def identify(number: int, **fields: Any) -> dict[str, Any]:
    """Return a movie with an external id."""
    return MOANA | {"external_id": f"a:{number}"} | fields


def test_an_update_creates_and_changes(run: Import, execute: Execute, monkeypatch: Patch) -> None:
    """It finds movies by their external ids; an equal one is not written, whatever else it has."""
    monkeypatch.setattr(importing, "MAX_CHUNK_ROWS", 3)
    run(*[identify(number) for number in range(8)], update=True)
    before = execute("select id, xmin::text from movies where external_id <> 'a:2' order by id")
    changes = execute("select count(*) from movie_changes")[0][0]
    own = {"id": 107, "version": "x", "updated_at": "2026-01-05T09:00:00Z", "etag": 1}
    equal = [identify(number, **own) for number in range(8) if number != 2]

    result = run(*equal, identify(2, year=2017), identify(8), update=True)

    assert result[:3] == (1, 1, 7)
    after = execute(
        "select id, xmin::text from movies where external_id not in ('a:2', 'a:8') order by id"
    )
    assert after == before
    assert execute("select count(*) from movie_changes") == [(changes + 2,)]
    assert execute("select year, version from movies where external_id = 'a:2'") == [(2017, 2)]


def test_an_update_needs_an_external_id_once_in_each_row(run: Import, rejects: Path) -> None:
    """Otherwise it would depend on the order of the rows what the movie is."""
    result = run(MOANA, identify(1), identify(1, year=2017), update=True, allow_rejects=True)

    assert (result.created, result.rejected) == (1, 2)
    assert [each["reasons"] for each in written(rejects)] == [
        ["external_id: is required for an update"],
        ["external_id: must not be repeated"],
    ]


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

    assert run(MOANA).created == 1
