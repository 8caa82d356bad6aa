"""Tests shared statements of the catalogue, without HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import orjson
import pytest
from conftest import MOANA, ROOT
from support import Execute, Patch, add_trigger, approve, hold, set_for_database, until

from service.app import EXPECTED
from service.config import Config
from service.database import query_files
from service.database.pool import Pool
from service.database.resource import Condition, ItemChange, Written
from service.database.statements import Statements
from service.database.store import Store
from service.errors import Contended, NotFound, PreconditionFailed, RuleBroken
from service.movies.keys import IdempotentCreates
from service.movies.movie import MOVIES

FIELDS = {**MOANA, "runtime": 107}
WAITING = "select 1 from pg_stat_activity where wait_event = 'advisory'"
Make = Callable[..., Statements]


@pytest.fixture
async def make(settings: Callable[..., Config], tmp_path: Path) -> AsyncIterator[Make]:
    """Make statements, with `old` replaced by `new` in the service's queries."""
    pools = []

    def begin(old: str, new: str) -> Statements:
        folder = copytree(ROOT / "queries", tmp_path / "queries")
        file = folder / "movies.sql"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        config = settings()
        pools.append(Pool(config.database, approve))
        return Statements(pools[-1], query_files.load(folder, EXPECTED), 3, 0)

    yield begin
    for pool in pools:
        await pool.close(timeout=0)


async def test_movies_are_told_apart_by_position(make: Make) -> None:
    """PostgreSQL may return the rows of a statement in any order."""
    joined = "join new as n on n.id = c.id"
    catalogue = Store(MOVIES, make(f"{joined};", f"{joined} order by n.position desc;"))

    movies = await asyncio.gather(
        *(catalogue.create({**FIELDS, "title": title}) for title in ("a", "b", "c"))
    )

    assert [movie.item.title for movie in movies] == ["a", "b", "c"]


async def test_an_external_id_that_comes_and_goes_is_no_broken_rule(statements: Statements) -> None:
    """Each time, another session commits it during the statement, and then deletes its movie."""
    lost = [RuleBroken("movies_external_id_unique") for _ in range(3)]

    async def send() -> str:
        if lost:
            raise lost.pop()
        return "written"

    assert await Store(MOVIES, statements).resender.send(send) == "written"
    statements.timeout = -1  # then it may succeed later
    lost.append(RuleBroken("movies_external_id_unique"))
    with pytest.raises(Contended):
        await Store(MOVIES, statements).resender.send(send)


async def test_a_create_is_on_disk_before_its_response(
    statements: Statements, execute: Execute
) -> None:
    """`synchronous_commit` stays as the DBA has set it."""
    set_for_database(execute, "synchronous_commit = on")
    execute("create table seen (setting text)")
    note = "insert into seen values (current_setting('synchronous_commit')); return new"
    add_trigger(execute, f"{note};")

    store = Store(MOVIES, statements)
    await store.create(FIELDS)
    await IdempotentCreates(store, statements).create("a", FIELDS)

    assert execute("select setting from seen") == [("on",)] * 2


async def test_a_statement_has_at_most_32_keys(statements: Statements, monkeypatch: Patch) -> None:
    """Each key takes a lock, and all sessions together have 6400 by default."""
    fetch = statements.fetch
    keys = []

    async def fetch_and_count(name: str, parameters: dict[str, str], **options: Any) -> Any:
        keys.append(len(orjson.loads(parameters["requests"])))
        return await fetch(name, parameters, **options)

    monkeypatch.setattr(statements, "fetch", fetch_and_count)
    store = Store(MOVIES, statements)
    idempotent_creates = IdempotentCreates(store, statements)

    await asyncio.gather(*(idempotent_creates.create(str(number), FIELDS) for number in range(100)))

    assert (max(keys), sum(keys)) == (32, 100)


@pytest.mark.parametrize("method", ["update", "delete"])
@pytest.mark.parametrize(
    ("theirs", "condition", "error"),
    [
        ("update movies set year = 2000", Condition(versions=[1]), PreconditionFailed),
        ("update movies set year = 2000", Condition(versions=[2]), None),
        ("update movies set year = 2000", Condition(other_than=[1]), None),
        ("delete from movies", Condition(versions=[1]), NotFound),
        ("select from movies", Condition(versions=[1]), None),
    ],
)
async def test_conditions_are_checked_under_the_lock(  # noqa: PLR0913, PLR0917 - the cases
    make: Make,
    execute: Execute,
    database: str,
    method: str,
    theirs: str,
    condition: Condition,
    error: type[Exception] | None,
) -> None:
    """Not in the statement's snapshot, because another session may change the movie after it."""
    gate = "from pg_advisory_xact_lock_shared(1), jsonb_to_recordset(:"
    catalogue = Store(MOVIES, make("from jsonb_to_recordset(:", gate))
    execute("insert into movies (title, year, runtime, genres) values ('x', 1999, 1, '{x}')")
    change = ItemChange(1, {"runtime": 2} if method == "update" else None, condition)

    with hold(database, "select pg_advisory_lock(1)"):
        outcome = asyncio.create_task(catalogue.change(change))
        await until(lambda: execute(f"{WAITING} and datname = current_database()"))
        execute(theirs)

    assert type((await asyncio.gather(outcome, return_exceptions=True))[0]) is (error or Written)
