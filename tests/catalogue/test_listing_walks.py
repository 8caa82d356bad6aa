"""Tests walks through random catalogues while movies are inserted and deleted."""

from typing import Any
from urllib.parse import parse_qsl

import pytest
from conftest import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as bounded
from hypothesis import strategies as st
from support import Execute

from service.catalogue import listing, paging

# Few different values, so that there are many ties.
movies = st.tuples(
    st.sampled_from(["A", "a", "Á", "B", "The Same", "the same", "ж", "\U0001f600"]),
    st.integers(1990, 1993),
    st.integers(90, 92),
    st.integers(1, 3),  # microseconds of created_at
    st.integers(1, 3),  # of updated_at
)
FILTERS = {
    "": "true",
    "year=1991": "year = 1991",
    "year=1991..": "year >= 1991",
    "created_at=2026-01-05T09:00:00.000002Z": "created_at = '2026-01-05 09:00:00.000002Z'",
    "updated_at=..2026-01-05T09:00:00.000002Z": "updated_at <= '2026-01-05 09:00:00.000002Z'",
}
changes = st.lists(
    st.one_of(st.tuples(st.just("insert"), movies), st.tuples(st.just("delete"), st.integers(0))),
    max_size=4,
)


@bounded(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    start=st.lists(movies, max_size=30),
    between=st.lists(changes, max_size=30),
    sort=st.sampled_from(paging.SORTS),
    size=st.integers(1, 7),
    wanted=st.sampled_from(sorted(FILTERS)),
    exact=st.sampled_from([10_000, 3]),
)
async def test_a_movie_that_stays_is_seen_once_and_in_order(  # noqa: PLR0913, PLR0917 - hypothesis's parameters
    client: Client,
    execute: Execute,
    start: list[Any],
    between: list[list[Any]],
    sort: str,
    size: int,
    wanted: str,
    exact: int,
) -> None:
    """Whatever is inserted and deleted during the walk."""
    execute("truncate movies restart identity")
    ids = [_insert(execute, movie) for movie in start]
    parameters = {"sort": sort, "page_size": str(size), **dict(parse_qsl(wanted))}
    stayed = _matching(execute, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "EXACT_TOTAL", exact)
        patch.setattr(paging, "EXACT_TOTAL", exact)
        pages: list[list[tuple[Any, int]]] = []
        changing = iter(between)
        for _ in range(200):  # there are fewer movies
            answer = await (await client.get("/v1/movies", params=parameters)).json()
            pages.append([_key(movie, sort) for movie in answer["movies"]])
            cursor = answer["metadata"]["next_cursor"]
            if not cursor:
                break
            parameters["cursor"] = cursor
            for kind, what in next(changing, []):
                if kind == "insert":
                    ids.append(_insert(execute, what))
                elif ids:
                    execute("delete from movies where id = %s", ids[what % len(ids)])
            stayed &= _matching(execute, wanted)
        else:
            pytest.fail("the walk does not end")

    seen = [key for page in pages for key in page]
    assert seen == sorted(set(seen), reverse=sort.startswith("-"))
    assert stayed <= {number for _, number in seen}


def _insert(execute: Execute, movie: Any) -> int:
    [(number,)] = execute(
        "insert into movies (title, year, runtime, genres, created_at, updated_at)"
        " values (%s, %s, %s, '{a}', '2026-01-05 09:00Z'::timestamptz + %s * interval '1 us',"
        " '2026-01-05 09:00Z'::timestamptz + %s * interval '1 us') returning id",
        *movie,
    )
    return int(number)


def _matching(execute: Execute, wanted: str) -> set[int]:
    return {n for (n,) in execute(f"select id from movies where {FILTERS[wanted]}")}


def _key(movie: dict[str, Any], sort: str) -> tuple[Any, int]:
    if sort == "relevance":
        return (len(movie["title"]), -movie["year"]), movie["id"]
    value = movie[sort.removeprefix("-")]
    return (int(value.split()[0]) if "runtime" in sort else value, movie["id"])
