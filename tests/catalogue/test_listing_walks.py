"""Tests walks through random catalogues while movies are inserted and deleted."""

from typing import Any

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
)
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
    year=st.sampled_from([None, "1991", "1991.."]),
    exact=st.sampled_from([10_000, 3]),
)
async def test_a_movie_that_stays_is_seen_once_and_in_order(  # noqa: PLR0913, PLR0917 - hypothesis's parameters
    client: Client,
    execute: Execute,
    start: list[Any],
    between: list[list[Any]],
    sort: str,
    size: int,
    year: str | None,
    exact: int,
) -> None:
    """Whatever is inserted and deleted during the walk."""
    execute("truncate movies restart identity")
    ids = [_insert(execute, movie) for movie in start]
    parameters = {"sort": sort, "page_size": str(size)} | ({"year": year} if year else {})
    stayed = _matching(execute, year)
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
            stayed &= _matching(execute, year)
        else:
            pytest.fail("the walk does not end")

    seen = [key for page in pages for key in page]
    assert seen == sorted(set(seen), reverse=sort.startswith("-"))
    assert stayed <= {number for _, number in seen}


def _insert(execute: Execute, movie: Any) -> int:
    [(number,)] = execute(
        "insert into movies (title, year, runtime, genres) values (%s, %s, %s, '{a}') returning id",
        *movie,
    )
    return int(number)


def _matching(execute: Execute, year: str | None) -> set[int]:
    low, high = {None: (0, 9999), "1991": (1991, 1991), "1991..": (1991, 9999)}[year]
    return {n for (n,) in execute("select id from movies where year between %s and %s", low, high)}


def _key(movie: dict[str, Any], sort: str) -> tuple[Any, int]:
    if sort == "relevance":
        return (len(movie["title"]), -movie["year"]), movie["id"]
    value = movie[sort.removeprefix("-")]
    return (int(value.split()[0]) if "runtime" in sort else value, movie["id"])
