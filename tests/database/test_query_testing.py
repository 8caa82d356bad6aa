"""Tests `queries test`: it finds wrong edits of queries, and changes nothing."""

import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson
import pytest
from conftest import ROOT
from support import (
    Environment,
    Execute,
    add_movies,
    add_trigger,
    hold,
    run_here,
    set_for_database,
    started,
    wait_until,
)

from service import config
from service.app import EXPECTED
from service.config import Config
from service.database import query_files
from service.database.query import Query
from service.database.query_testing import CALLS, Call, Placeholders, ResultRows, compare, run_tests
from service.errors import Contended, FileError
from service.movies.movie import FIELDS

READ = "select m.id, m.title, m.year, m.runtime"
SWAPPED = "select m.id, m.title, m.runtime as year, m.year as runtime"
CREATED = "select n.id, n.title, n.year, n.runtime, n.genres"
OWN_FILTERS = (
    *("{genres,genres_any}", "{year_from,year_to,years}", "{runtime_from,runtime_to,runtimes}"),
)
# For each query, what an edit replaces, and by what; `queries check` accepts all of them.
FOUND = {
    "get_movies": [
        ("any (:ids)", "any (:ids) and m.year > 1900"),
        ("any (:ids)", "any (:ids) limit 100"),
        (READ, SWAPPED),
        ("m.created_at, m.updated_at", "m.updated_at as created_at, m.updated_at"),
        ("where m.id = any (:ids)", "where m.id = any (:ids) and m.year >= 1991"),
    ],
    "create_movies": [
        ("nextval('movies_id_seq')", "1000000000 + n.position"),
        (CREATED, "select n.id, n.title, n.runtime, n.year, n.genres"),
        ("n.runtime, n.genres", "n.runtime, n.genres[1:1] as genres"),
        ("n.position, c.*", "9 - n.position + 5 as position, c.*"),
        ("pg_current_xact_id()::text::bigint", "txid_current() - 1"),
    ],
    "put_movies": [
        ("when not n.replace then", "when false then"),
        (") is distinct from (p.", ") is not distinct from (p."),
        ("n.external_id is null then 'created'", "n.external_id is null then 'locked'"),
        ("where a.outcome in ('taken', 'failed', 'locked')", "where false"),
        ("when n.versions is not null and n.id is null then 'failed'", ""),
        ("when n.id <> n.tagged_id then 'failed'", ""),
        ("when n.version <> all (n.versions) then 'failed'", ""),
        ("where g.outcome = 'created'", ""),
        ("in ('equal', 'taken')", "= 'equal'"),
        *((f"m.{field}", f"f.{field}") for field in FIELDS if field != "external_id"),
        ("jsonb_populate_record(m.*, ", "jsonb_populate_record(null::movies, "),
    ],
    "put_imported_movies": [
        *((f"excluded.{field}", f"o.{field}") for field in FIELDS if field != "external_id"),
        ("w.version > 1", "w.version > 9"),
    ],
    "update_movies": [
        ("join changes as c on c.id = m.id", "join changes as c on c.id = m.id and m.year > 1900"),
        ("(f.was).version <> all (c.versions)", "false"),
        ("f.movie *<> f.was or ", ""),
        (" or (f.was).version - 1 <> all (c.versions)", ""),
        ("(f.was).version = any (c.other_than)", "false"),
        *(("<> all (c.versions)", f"{sign} all (c.versions)") for sign in ("<", ">")),
        *(("= any (c.other_than)", f"{sign} any (c.other_than)") for sign in ("<=", ">=")),
        ("(f.was).updated_at) > c.unm", "(f.was).updated_at) >= c.unm"),
        ("when o.id is not null", "when false"),
        ("and o.id <> c.id", ""),
        ("and o.id <> c.id", "and o.id > c.id"),
        ("then k.owner else", "then k.id else"),
        ("d.version, d.created_at", "d.version - 1 as version, d.created_at"),
        ("(k.movie).title, (k.movie).year", "(k.movie).title, m.year"),
        ("and k.outcome = 'changed'", ""),
        ("where a.outcome not in ('changed', 'equal')", "where false"),
    ],
    "delete_movies": [
        (
            "in (select d.id from deletions as d)",
            "in (select d.id from deletions as d) and m.year > 1900",
        ),
        ("f.version <> all (d.versions)", "false"),
        *(("<> all (d.versions)", f"{sign} all (d.versions)") for sign in ("<", ">")),
        *(("= any (d.other_than)", f"{sign} any (d.other_than)") for sign in ("<=", ">=")),
        ("left join free as f on f.id = d.id", "left join free as f on true"),
        ("and k.outcome = 'deleted'", ""),
        ("where a.outcome <> 'deleted'", "where false"),
    ],
    "create_movies_once": [
        ("k.key = r.key and ", ""),
        ("having bool_and(c.id is not null)", "having false"),
        ("order by n.position) else", "order by n.position desc) else"),
        ("and k.expires_at > now()\n    )", "\n    )"),
        ("n.key, n.fingerprint,\n", "n.key, 'f' as fingerprint,\n"),
    ],
    "get_idempotent_responses": [
        ("where k.expires_at > now()", "where true"),
        ("m.title, m.year, m.runtime", "m.title, m.year, m.year as runtime"),
        ("(coalesce(r.place, 1) - 1)", "coalesce(r.place, 1)"),
    ],
    "clear_idempotency_keys": [
        ("order by k.expires_at\n", "order by k.expires_at desc\n"),
        ("k.expires_at <= now()", "k.expires_at > now()"),
        ("<= now()", "<= now() + interval '1 hour'"),
        ("limit coalesce(:at_most, 0)", "limit coalesce(:at_most, 0) + 9"),
    ],
    "sort_movies": [
        (":filter)\n    and", ":filter::jsonb - 'title')\n    and"),
        (":filter)\n    and", ":filter::jsonb - 'genres_any')\n    and"),
        (":filter)\n    and", ":filter)\n    and m.year >= 1991 and"),
        ("  limit :most::bigint + 1", "  limit 3"),
        ("m.matches > :most::bigint", "false"),
        ("then c.matches else", "then c.matches - 1 else"),
        ("limit :size", "limit least(:size, 100)"),
        ("limit :size offset :skip", "limit :size + 20 offset :skip"),
        ("m.follows\n", "true\n"),
        ("m.number_down desc", "m.number_down"),
        ("order by p.place", "order by p.place desc"),
    ],
    "walk_movies": [
        ("limit :size", "limit least(:size, 100)"),
        ("and movie_follows", "and m.year > 1900 and movie_follows"),
        (":after, :after_id, m.id", ":after, :after_id::bigint - 1, m.id"),
        ("limit :size offset :skip", "limit :size offset :skip * 0"),
        ("limit :size offset :skip", "limit :size + 20 offset :skip"),
        ("o.id_down desc, ", ""),
    ],
    "count_facets": [
        ("order by f.movies desc, f.value", "order by f.value"),
        ("order by f.movies desc, f.value", "order by f.movies, f.value"),
        ("r.place <= 20", "r.place <= 19"),
        ("partition by f.facet", "partition by true"),
        ("where n.spelling not like '%,%'", "where true"),
        ("when :facets not like '%genres%'", "when false"),
        *(
            (f":filter::jsonb - '{own}'::text[])\n    limit", ":filter)\n    limit")
            for own in OWN_FILTERS
        ),
        *((f":filter::jsonb ?| '{own}' then", "false then") for own in OWN_FILTERS),
    ],
    "suggest_movies": [("order by s.place", "order by s.place desc")],
    "count_genres": [
        ("from movies as m\n", "from movies as m where m.year > 1900\n"),
        ("min(s.movies) as movies\n  from spelled", "sum(s.movies) as movies\n  from spelled"),
        ("m.genres, count(*) as movies", "m.genres, 1 as movies"),
        ("n.movies desc, n.spelling", "n.movies, n.spelling"),
        ("order by n.movies desc, n.genre", "order by n.movies, n.genre"),
    ],
    "get_changes": [
        ("m.id = c.movie_id", "m.id = c.movie_id and m.year > 1900"),
        ("\n    and c.transaction < s.horizon\n", "\n"),
        ("and c.transaction < s.horizon", "and c.transaction < s.horizon and c.kind <> 'deleted'"),
        ("greatest(l.transaction", "least(l.transaction"),
        ("left join movies as m on", "join movies as m on"),
        (") > (\n      coal", ") >= (\n      coal"),
        ("order by c.transaction, c.id\n  limit :size", "order by c.id\n  limit :size"),
        (":after::xid8 <= s.cleared_to or ", ""),
        ("c.version as change_version", "m.version as change_version"),
    ],
    "clear_changes": [
        ("and o.has_expired", ""),
        ("over (order by c.transaction, c.id)", "over (partition by c.id)"),
        ("coalesce((select l.transaction from last as l), f.cleared_to)", "f.cleared_to"),
        ("      and c.transaction < pg_snapshot_xmin(pg_current_snapshot())\n", ""),
    ],
    "get_clients": [
        ("any (:ids)", "any (:ids) or true"),
        ("coalesce(c.revoked_at <= now(), false)", "false"),
        ("coalesce(c.expires_at, 'infinity')", "'infinity'::timestamptz"),
        ("c.last_used_on is not distinct from", "c.last_used_on is distinct from"),
    ],
    "mark_clients_used": [
        ("c.id = any (:ids)", "(c.id = any (:ids) or true)"),
        ("(now() at time zone 'UTC')::date\nfrom", "c.last_used_on\nfrom"),
        (
            "c.last_used_on is distinct from (now() at time zone 'UTC')::date",
            "c.last_used_on is null",
        ),
    ],
    "rotate_client": [
        ("previous_expires_at = :former_token_until", "previous_expires_at = c.expires_at"),
        ("then c.token_hash end", "then :token_hash end"),
    ],
    "list_clients": [
        ("when c.previous_expires_at > now() then", "when true then"),
        ("order by c.name", ""),
    ],
    "revoke_client": [("least(c.revoked_at, now())", "c.revoked_at")],
    "lock_client": [
        ("when c.previous_expires_at > now() then", "when true then"),
        ("least(c.revoked_at, c.expires_at) <= now()", "c.revoked_at <= now()"),
    ],
    "import_movies": [
        ("coalesce(n.created_at, now())", "n.created_at"),
        ("n.title, n.year, n.runtime", "n.title, n.runtime, n.year"),
        ("coalesce(n.version, 1)", "1"),
        ("coalesce(n.updated_at, now())", "now()"),
    ],
    "export_movies": [
        ("where m.id", "where m.year > 1900 and m.id"),
        ("m.id > :after_id", "m.id >= :after_id"),
        ("order by m.id", "order by m.id desc"),
        ("order by m.id\n", ""),
    ],
}
LOADED = query_files.load(ROOT / "queries", EXPECTED)
# What these return depends on the server, or they only prepare what others do.
NOT_CALLED = {
    *("get_applied_migrations", "get_schema_faults", "get_primary_state", "get_replica_state"),
    *("estimate_idempotency_keys", "measure_changes_delay"),
    *("reserve_movie_ids", "postpone_words", "add_postponed_words", "analyze_movies"),
}
Edit = Callable[[str, str, str], Mapping[str, Query]]


@pytest.fixture(scope="module")
def shared(new_database: Callable[[str], str], template: str) -> Config:
    """Settings with a migrated database for all tests of edits: they change nothing in it."""
    return config.load(ROOT / "config.toml", {"DATABASE_URL": new_database(template)})


@pytest.fixture
def edit(tmp_path: Path) -> Edit:
    """Replace a text of a query, and load it."""

    def run(name: str, old: str, new: str) -> Mapping[str, Query]:
        path = LOADED[name].path
        before, mark, after = path.read_text().partition(f"-- name: {name}(")
        query, next_mark, rest = after.partition("\n-- name: ")
        assert old in query
        folder = tmp_path / "queries"
        folder.mkdir()
        text = before + mark + query.replace(old, new, 1) + next_mark + rest
        (folder / path.name).write_text(text)
        names = [name for name in LOADED if LOADED[name].path == path]
        return LOADED | query_files.load(folder, {name: EXPECTED[name] for name in names})

    return run


def test_every_query_is_expected_and_called() -> None:
    """Else the service would send it unverified, and no wrong edit of it would be found."""
    document = orjson.loads(CALLS.read_bytes())
    called = {
        name
        for calls in (document["before"], *document["tests"].values())
        for call in calls
        for name in call[0].split()
    }

    assert set(LOADED) == set(EXPECTED)
    assert set(EXPECTED) - called == NOT_CALLED


@pytest.mark.parametrize(
    ("name", "old", "new"), [(name, *edit) for name, edits in FOUND.items() for edit in edits]
)
def test_a_wrong_edit_is_found(shared: Config, edit: Edit, name: str, old: str, new: str) -> None:
    """A mistake names a query, with file and line: the wrong one, or one that shows its effect."""
    queries = edit(name, old, new)

    with pytest.raises(FileError, match=r"^queries/\w+\.sql:\d+: \w+"):
        run_tests(shared, queries, print)


def test_a_read_that_writes_is_found(
    settings: Callable[..., Config], edit: Edit, execute: Execute
) -> None:
    """Also if a function does it: requests send the read in a read-only transaction."""
    execute(
        "create or replace function touched(id bigint) returns bigint language plpgsql as"
        " $$ begin delete from idempotency_keys where key = 'qxzvjwk'; return id; end $$"
    )

    with pytest.raises(FileError, match=r"get_movies: cannot execute DELETE in a read-only"):
        run_tests(
            settings(), edit("get_movies", "select m.id,", "select touched(m.id) as id,"), print
        )


TABLES = ("movies", "movie_changes", "movie_feed", "idempotency_keys", "clients", "search_words")


def read_all(execute: Execute) -> list[object]:
    """Return all rows of the tables that the tests write."""
    return [execute(f"select t::text from {table} as t order by 1") for table in TABLES]


def test_it_changes_nothing(environment: Environment, execute: Execute) -> None:
    """Movies, keys, changes and clients of others are left as they are, and do not matter."""
    add_movies(execute, *map(str, range(1500)))
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'a', 2000, 1, array[g::text] from generate_series(1, 900) as g"
    )
    execute(
        "insert into idempotency_keys (key, fingerprint, expires_at)"
        " select k, 'f', now() + (k - 5) * interval '1 h' from generate_series(1, 9) as k"
    )
    execute(
        "insert into clients (name, token_hash, scopes) values ('a', repeat('0', 64), '{read}')"
    )
    before = read_all(execute)

    status, out, err = run_here(environment, "queries", "test")

    assert (status, err) == (0, "")
    assert out == f"the queries of {ROOT / 'queries'} return what the service expects\n"
    assert read_all(execute) == before


def test_a_mistake_is_reported(environment: Environment, checkout: Path) -> None:
    """The exit status is 1, and the message has the query, its line and its parameters."""
    file = checkout / "queries" / "listing.sql"
    file.write_text(file.read_text().replace(":size offset :skip", ":size offset 0 * :skip", 1))
    environment["CATALOGUE_CONFIG"] = str(checkout / "config.toml")

    status, out, err = run_here(environment, "queries", "test")

    assert (status, out) == (1, "")
    place = LOADED["sort_movies"].location
    call = 'sort_movies {"skip":1,"size":1}'
    assert err.startswith(f'Error: {place}: {call}: id of row 0: expected "id 1", found ')


def test_each_query_has_ten_seconds_or_its_own_timeout(settings: Callable[..., Config]) -> None:
    """The machine may be busy, and a count of genres takes long."""
    timeouts = {}

    def judge(call: Call, query: Query, rows: ResultRows, values: Placeholders) -> None:
        timeouts[query.name] = query.timeout
        compare(call, query, rows, values)

    run_tests(settings(), LOADED, print, judge)

    assert (timeouts["get_movies"], timeouts["walk_movies"], timeouts["count_genres"]) == (
        10,
        10,
        60,
    )


REFUSAL = (
    "create function refuse() returns trigger language plpgsql as $$ begin"
    " if new.year < 1900 then raise 'none so old'; end if; return new; end $$;"
    " create trigger refuse before insert on movies for each row execute function refuse()"
)
CONDITION = (
    "do $$ begin execute replace(pg_get_functiondef('movie_matches(movies,jsonb)'::regprocedure),"
    " 'RETURN ', 'RETURN m.year > 1900 and '); end $$"
)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("alter table movies add constraint my_rule check (year > 1900)", 'constraint "my_rule"'),
        (REFUSAL, "none so old"),
        (CONDITION, "movie_matches hides samples from lists"),
    ],
    ids=["constraint", "trigger", "filter"],
)
def test_samples_that_a_rule_of_ones_own_refuses_are_skipped(
    settings: Callable[..., Config], execute: Execute, edit: Edit, rule: str, reason: str
) -> None:
    """The report names it; other samples are tested, so that a wrong edit is still found."""
    execute(rule)
    reports: list[str] = []

    may_run_all = run_tests(settings(), LOADED, reports.append)

    assert may_run_all
    assert any("lists, orders: " in report for report in reports)
    assert [r for r in reports if not r.startswith("not tested with extreme values: ")] == []
    assert all(reason in report for report in reports)
    with pytest.raises(FileError, match="sort_movies"):
        run_tests(settings(), edit("sort_movies", "limit :size", "limit least(:size, 2)"), print)


def test_a_rule_that_refuses_all_samples_is_named(
    settings: Callable[..., Config], execute: Execute
) -> None:
    """Also if it is checked at the commit."""
    execute(
        "create table years (year integer primary key);"
        "alter table movies add constraint movies_year_known"
        " foreign key (year) references years initially deferred"
    )
    reports: list[str] = []

    run_tests(settings(), LOADED, reports.append)

    assert all(report.startswith("not tested: ") for report in reports)
    assert all('constraint "movies_year_known"' in report for report in reports)


def test_the_feed_may_have_cleared_changes(
    settings: Callable[..., Config], execute: Execute
) -> None:
    """As every feed after `keep_days`."""
    execute("update movie_feed set cleared_to = '1'")

    assert run_tests(settings(), LOADED, print)


def test_the_feed_may_be_off(settings: Callable[..., Config], execute: Execute) -> None:
    """Then everything else is tested, and the report says so."""
    reports: list[str] = []
    off = settings(changes__keep_days=0)
    execute("select switch_movie_feed(false)")

    run_tests(off, LOADED, reports.append)

    assert reports == [
        "not tested: changes: the feed is off",
        "not tested: changes, cleared: the feed is off",
        "not tested: changes, detected: the feed is off",
        "not tested: changes, restored: the feed is off",
    ]


def test_a_read_only_database_is_refused(environment: Environment, execute: Execute) -> None:
    """The tests write."""
    set_for_database(execute, "default_transaction_read_only = on")

    status, out, err = run_here(environment, "queries", "test")

    assert (status, out) == (1, "")
    assert err == "Error: the database is read-only: the queries cannot be tested there\n"


WAITING = "from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"


@pytest.fixture
def sleeping(environment: Environment, execute: Execute) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command, and wait until it runs a statement that takes a minute."""
    add_trigger(execute, "perform pg_sleep(60); return new;")
    with started(environment, "queries", "test") as process:
        wait_until(lambda: execute(f"select pid {WAITING}"))
        yield process


def test_ctrl_c_ends_the_statement(sleeping: subprocess.Popen[bytes], execute: Execute) -> None:
    """It is one line, and the server goes on with nothing."""
    sleeping.send_signal(signal.SIGINT)
    out, err = sleeping.communicate()

    assert (sleeping.returncode, out, err) == (130, b"", b"stopped\n")
    wait_until(lambda: not execute(f"select pid {WAITING}"))


def test_a_lock_is_not_waited_for(settings: Callable[..., Config], database: str) -> None:
    """What the tests have locked would wait, too."""
    with hold(database, "lock table idempotency_keys"), pytest.raises(Contended, match="lock time"):
        run_tests(settings(), LOADED, print)
