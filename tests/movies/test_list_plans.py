"""Tests the plans of list queries: selective filters and walks use an index."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from conftest import ROOT
from support import Execute

from service.app import EXPECTED
from service.database import listing, query_files
from service.database.listing import Place, SortKey, filter_parameter
from service.movies.parameters import EVERYTHING, NOTHING, QUERIES, SORTS, Filter
from service.web.query_strings import Range

# 20,000 movies; of the filters below, each finds at most a few hundred. Four movies of each time.
FILL = """
insert into movies (title, year, runtime, genres, created_at, updated_at, external_id)
select 'common ' || case when n % 100 = 0 then 'rare' else 'other' end || ' ' || n,
  1900 + n % 120, 1 + n % 300, array['drama', case when n % 100 = 1 then 'seldom' else 'often' end],
  '2026-01-01Z'::timestamptz + n / 4 * interval '1 hour',
  '2026-01-01Z'::timestamptz + (20000 - n) / 4 * interval '1 hour',
  case when n % 100 = 2 then 'a:' when n % 2 = 0 then 'b:' end || n
from generate_series(1, 20000) as n
"""
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = Range(START + timedelta(days=50), START + timedelta(days=51))
FILTERS = {
    "title": (Filter(title="rare"), "movies_search"),
    "prefix": (Filter(title="rar*"), "movies_search"),
    "words": (Filter(title="common rare"), "movies_search"),
    "genres": (Filter(genres=("seldom",)), "movies_search"),
    "genres_any": (Filter(genres_any=("seldom", "never")), "movies_search"),
    "year": (Filter(year=Range(1950, 1950)), "movies_year"),
    "years": (Filter(year=Range(1950, 1952, "{[1950,1950],[1952,1952]}")), "movies_year"),
    "runtime": (Filter(runtime=Range(7, 8)), "movies_runtime"),
    "runtimes": (Filter(runtime=Range(7, 9, "{[7,7],[9,9]}")), "movies_runtime"),
    "created_at": (Filter(created_at=DAY), "movies_created_at"),
    "updated_at": (Filter(updated_at=DAY._replace(high=DAY.low)), "movies_updated_at"),
    "created_at from": (Filter(created_at=Range(START + timedelta(days=207))), "movies_created_at"),
    # Here, the database's own collation is as good as "C".
    "external_id_prefix": (Filter(external_id_prefix="a:"), "movies_external_id_(prefix|unique)"),
    "all": (
        Filter(title="rare", genres=("drama",), year=Range(1950, None), runtime=Range(None, 200)),
        "movies_(search|year|runtime)",
    ),
}
KEYS = {"id": SortKey(10_000, 10_000), "title": SortKey("common other 5", 5)}
KEYS |= {"year": SortKey(1950, 10_000), "runtime": SortKey(150, 10_000)}
KEYS |= {field: SortKey(START + timedelta(100), 9_600) for field in ("created_at", "updated_at")}
KEYS |= {"relevance": SortKey(17 * 10**10 - 1950, 10_000)}  # "common other 1234"
INDEXES = {"id": "movies_pkey", "title": "movies_title"}
INDEXES |= {"year": "movies_year", "runtime": "movies_runtime", "relevance": "movies_rank"}
INDEXES |= {field: f"movies_{field}" for field in ("created_at", "updated_at")}

Plan = Callable[..., Any]


@pytest.fixture(scope="module")
def plan(new_database: Callable[[str], str], template: str) -> Iterator[Plan]:
    """Return PostgreSQL's plan, as text, for a query as the service sends it."""
    loaded = query_files.load(ROOT / "queries", QUERIES)
    with closing(psycopg2.connect(new_database(template))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(FILL)
            cursor.execute("vacuum analyze movies")

            def explain(name: str, *given: dict[str, Any], explain: str = "explain") -> str:
                query = loaded[name]
                parameters = {name: value for some in given for name, value in some.items()}
                cursor.execute(f"{query.build_preamble(3)}{explain} {query.sql}", parameters)
                return "\n".join([line for (line,) in cursor])

            yield explain


def place(sort: str, key: SortKey | None = None, size: int = 21) -> dict[str, Any]:
    """Return the parameters for a page's place."""
    return listing.place_parameters(sort, Place(key=key), size)


def walk(wanted: Filter, sort: str, key: SortKey, size: int = 21) -> list[dict[str, Any]]:
    """Return the parameters of walk_movies."""
    filters, begin = listing.choose_start(wanted.as_json(), sort, key)
    return [filter_parameter(filters), place(sort, begin, size)]


def test_every_filter_is_tried() -> None:
    """Below, and when the queries are verified: all its members, of all fields."""
    members = json.loads(str(NOTHING["filter"])).keys()

    assert {name for wanted, _ in FILTERS.values() for name in wanted.as_json()} == members
    for field in fields(Filter):
        assert any(name.startswith(field.name) for name in members), field.name


@pytest.mark.parametrize("stale", [-1, 0])
@pytest.mark.parametrize("name", ["sort_movies", "count_facets"])
def test_the_sample_is_right_without_statistics(
    execute: Execute, database: str, name: str, stale: int
) -> None:
    """As pg_upgrade leaves the table, or a load: the whole table would take seconds."""
    execute("alter table movies set (autovacuum_enabled = off)")
    execute(FILL)
    execute("update pg_class set reltuples = %s, relpages = 1 where relname = 'movies'", stale)
    query = query_files.load(ROOT / "queries", QUERIES)[name]
    parameters = place("id") | {"filter": "{}", "facets": "genres", "most": 100}

    with closing(psycopg2.connect(database)) as session, session.cursor() as cursor:
        cursor.execute(f"explain (analyze, format json) {query.sql}", parameters)
        plan = str(cursor.fetchall())
        cursor.execute(query.sql, parameters)
        (total, *_), *_ = cursor.fetchall()

    *rough, rows = re.findall(r"'Node Type': 'Sample Scan'.*?'Actual Rows': ([0-9]+)", plan)
    assert 5_000 < int(rows) < 15_000
    assert all(250 < int(few) < 1_500 for few in rough)
    assert len(rough) == (name == "sort_movies")
    assert 14_000 < total < 40_000


@pytest.mark.parametrize("name", FILTERS)
def test_a_selective_filter_is_found_along_an_index(plan: Plan, name: str) -> None:
    """To count, to sort, for a page by cursor and for a stream: all movies are never walked."""
    wanted, index = FILTERS[name]
    parameters = filter_parameter(wanted.as_json())
    declare = "explain declare c no scroll cursor for"  # plans for all rows
    plans = []
    for sort in SORTS:
        key = KEYS[sort.removeprefix("-")]
        plans += [
            plan("sort_movies", parameters, place(sort), {"most": n}) for n in ("10000", None)
        ]
        plans.append(plan("walk_movies", *walk(wanted, sort, key, 101)))
        whole = place(sort) | {"size": None}
        plans.append(plan("walk_movies", parameters, whole, explain=declare))

    for found in plans:
        assert re.search(rf" (on|using) {index}", found)
        assert "Seq Scan on movies" not in found
        assert "movie_matches" not in found


def test_each_order_is_a_walk_along_its_index(plan: Plan) -> None:
    """It starts at the key and needs no sort."""
    for sort in (*SORTS, "-relevance"):  # -relevance: to the previous page
        for key in (None, KEYS[sort.removeprefix("-")]):
            found = plan("walk_movies", EVERYTHING, place(sort, key))

            direction = "Backward " if sort.startswith("-") else ""
            assert f"Index Scan {direction}using {INDEXES[sort.removeprefix('-')]}" in found
            assert "Sort" not in found
            assert ("Index Cond" in found) == bool(key)


TIMES = Range(START + timedelta(days=5), START + timedelta(days=200))


@pytest.mark.parametrize("descending", ["", "-"])
@pytest.mark.parametrize(
    ("wanted", "sort", "keys"),
    [
        (Filter(year=Range(1905, 2015)), "year", [1890, 1910, 1960, 2010, 2030]),
        *(
            (wanted, sort, [START + timedelta(days) for days in (-1, 10, 100, 190, 400)])
            for wanted, sort in (
                (Filter(created_at=TIMES), "created_at"),
                (Filter(updated_at=TIMES), "updated_at"),
            )
        ),
    ],
    ids=["year", "created_at", "updated_at"],
)
def test_a_walk_within_a_range_begins_at_its_key(
    plan: Plan, wanted: Filter, sort: str, keys: list[Any], descending: str
) -> None:
    """Or at the range, if the key is before it: a deep page reads no more than the first one."""
    for key in keys:
        found = plan(
            "walk_movies",
            *walk(wanted, f"{descending}{sort}", SortKey(key, 10_000)),
            explain="explain (analyze, buffers)",
        )

        assert re.search(rf"Index Scan (Backward )?using movies_{sort}", found)
        read = re.search(r"Buffers: shared hit=(\d+)", found)
        assert read
        assert int(read[1]) < 50


def test_an_estimate_reads_a_part_of_the_table(plan: Plan) -> None:
    """About 500 movies show that many match, and 10,000 how many, whatever the table's size."""
    parameters = filter_parameter({"genres": "drama"}), place("id"), {"most": "1000"}

    found = plan("sort_movies", *parameters, explain="explain analyze")

    scanned = re.findall(r"Sample Scan on movies.*actual .*rows=(\d+)", found)
    few, many = sorted(map(int, scanned))
    assert 300 < few < 800
    assert 7_000 < many < 13_000
    assert re.search(r"CTE matched\n.*rows=0", found)  # nothing is counted


def test_no_statement_is_compiled(database: str) -> None:
    """PostgreSQL's JIT takes up to 0.4 s, if it is there: more than lists take."""
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute("set jit = on")
        for query in query_files.load(ROOT / "queries", EXPECTED).values():
            cursor.execute(f"{query.build_preamble(1)}show jit")
            assert cursor.fetchall() == [("off",)], query.name
            connection.rollback()
            cursor.execute("set jit = on")


def test_movies_is_analyzed_as_often_as_it_is_vacuumed(execute: Execute) -> None:
    """Otherwise `vacuum` alone changes the number of rows that totals are estimated from."""
    [(options,)] = execute("select reloptions from pg_class where oid = 'movies'::regclass")

    vacuumed, analyzed = (f"autovacuum_{what}_scale_factor=0.02" for what in ("vacuum", "analyze"))
    assert {vacuumed, analyzed} <= {*options}
