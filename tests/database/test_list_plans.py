"""How PostgreSQL carries out list_movies: along an index, for whatever is selective."""

import re
from collections.abc import Callable
from typing import Any

import aiopg
import pytest
from conftest import ROOT

from service import listing, movies
from service.database import queries
from service.database.queries import Session
from service.listing import ANY, SORTS, Filter, Key, Range

Execute = Callable[..., list[tuple[Any, ...]]]

# 20,000 movies; of the filters below, each finds at most a few hundred.
FILL = """
insert into movies (title, year, runtime, genres)
select 'common ' || case when n % 100 = 0 then 'rare' else 'other' end || ' ' || n,
  1900 + n % 120, 1 + n % 300, array['drama', case when n % 100 = 1 then 'seldom' else 'often' end]
from generate_series(1, 20000) as n
"""
FILTERS = {
    "title": (Filter(title="rare"), "movies_search"),
    "prefix": (Filter(title="rar*"), "movies_search"),
    "words": (Filter(title="common rare"), "movies_search"),
    "genres": (Filter(genres=("seldom",)), "movies_search"),
    "year": (Filter(year=Range(1950, 1950)), "movies_year"),
    "runtime": (Filter(runtime=Range(7, 8)), "movies_runtime"),
    "all": (
        Filter(title="rare", genres=("drama",), year=Range(1950, None), runtime=Range(None, 200)),
        "movies_(search|year|runtime)",
    ),
}
KEYS = {"id": Key(10_000, 10_000), "title": Key("common other 5", 5)}
KEYS |= {"year": Key(1950, 10_000), "runtime": Key(150, 10_000)}
INDEXES = {"id": "movies_pkey", "title": "movies_title"}
INDEXES |= {"year": "movies_year", "runtime": "movies_runtime"}

Plan = Callable[..., Any]


@pytest.fixture
async def plan(database: str, execute: Execute) -> Plan:
    """Return PostgreSQL's plan, as text, for a statement that the listing sends."""
    execute(FILL)
    execute("vacuum analyze movies")
    query = queries.load(ROOT / "queries", {**movies.QUERIES, **listing.QUERIES})["list_movies"]

    async def explain(around: tuple[str, str] = ("", ""), **parameters: Any) -> str:
        async with aiopg.connect(database) as connection:
            settings, _, before = around[0].rpartition("; ")
            prefix = f"{settings}; explain {before}" if settings else f"explain {before}"
            session = Session(connection, prefix, around[1])
            return "\n".join([line async for (line,) in query.run(session, **parameters)])

    return explain


@pytest.mark.parametrize("name", FILTERS)
async def test_a_selective_filter_is_found_along_an_index(plan: Plan, name: str) -> None:
    """In every order, without reading the table through; the page is then fetched by id."""
    wanted, index = FILTERS[name]
    for sort in SORTS:
        found = await plan(
            listing._among(listing.EXACT, sort),  # noqa: SLF001 - what the listing itself sends
            **listing._parameters(wanted),  # noqa: SLF001 - as above
            **listing._order(None, None),  # noqa: SLF001 - as above
            skip=0,
            size=listing.EXACT + 1,
            page_after=None,
            page_after_id=None,
            page_skip=0,
            page_size=21,
        )

        assert re.search(rf" (on|using) {index}", found)
        assert "movies_pkey" in found
        assert "Seq Scan" not in found


@pytest.mark.parametrize("name", FILTERS)
async def test_a_page_of_few_is_found_along_their_index(plan: Plan, name: str) -> None:
    """By cursor as well, where they are not counted: whatever the order, it is no walk past all."""
    wanted, index = FILTERS[name]
    for sort in SORTS:
        found = await plan(
            (listing.COSTS, ""),
            **listing._walk(listing._parameters(wanted), sort, KEYS[sort.removeprefix("-")]),  # noqa: SLF001 - what the listing itself sends
            skip=0,
            size=101,
        )

        assert re.search(rf" (on|using) {index}", found)
        assert "Seq Scan" not in found


async def test_each_order_is_a_walk_along_its_index(plan: Plan) -> None:
    """From the key on, without sorting anything."""
    for sort in SORTS:
        for key in (None, KEYS[sort.removeprefix("-")]):
            found = await plan(
                (listing.COSTS, ""),
                **listing._parameters(Filter()),  # noqa: SLF001 - as above
                **listing._order(sort, key),  # noqa: SLF001 - as above
                skip=0,
                size=21,
            )

            direction = "Backward " if sort.startswith("-") else ""
            assert f"Index Scan {direction}using {INDEXES[sort.removeprefix('-')]}" in found
            assert "Sort" not in found
            assert ("Index Cond" in found) == bool(key)


@pytest.mark.parametrize("sort", ["year", "-year"])
@pytest.mark.parametrize("year", [1890, 1910, 1960, 2010, 2030])
async def test_a_walk_within_a_range_begins_at_its_key(plan: Plan, sort: str, year: int) -> None:
    """Or at the range, where the key is ahead of it: a page far from the first reads no more."""
    filters = listing._parameters(Filter(year=Range(1905, 2015)))  # noqa: SLF001 - as above
    found = await plan(
        (f"{listing.COSTS}(analyze, buffers) ", ""),
        **listing._walk(filters, sort, Key(year, 10_000)),  # noqa: SLF001 - as above
        skip=0,
        size=21,
    )

    assert re.search(r"Index Scan (Backward )?using movies_year", found)
    read = re.search(r"Buffers: shared hit=(\d+)", found)
    assert read
    assert int(read[1]) < 50


def test_an_empty_filter_is_any_movie() -> None:
    """Nothing is asked for, so nothing is sent but nulls."""
    assert set(listing._parameters(Filter()).values()) == {None}  # noqa: SLF001 - as above
    assert Filter().year is ANY
