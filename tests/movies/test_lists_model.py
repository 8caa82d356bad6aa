"""Compares lists over HTTP with a model: random catalogues, filters, orders, places and page sizes.

Few different values make many ties. If a test fails, hypothesis prints the catalogue and the lists,
and how to run them again. It does not look for smaller ones, which would take minutes.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg2
import pytest
from conftest import Client, Start
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as bounded
from hypothesis import strategies as st
from support import Execute, Patch

from service.database import listing
from service.movies.parameters import SORTS, Filter

EXACT_TOTAL, NUMBERED_ITEMS = 12, 25  # in place of 10,000 and more
MAX_PAGES = 200  # no walk has so many
TIMES = [datetime(2026, 1, 5, 9, 0, 0, microseconds, UTC) for microseconds in (1, 2, 3)]
YEARS, RUNTIMES = (1990, 1993), (90, 92)
WORDS, SEARCHED = ["The", "a", "man", "Spider", "Ж"], ["the", "A", "MAN", "spider", "ж", "ma"]
GENRES = ["drama", "Comedy", "sci-fi", "DRAMA", "x&y", "war"]
SEARCHED_GENRES = ["Drama", "comedy", "sci-fi", "x&y", "sci", "war"]
BACK, ON = "previous_cursor", "next_cursor"
INSERT = """
insert into movies (title, year, runtime, genres, external_id, created_at, updated_at)
select
  title, year, runtime, genres, case when year > 1990 then title || ':' || gen_random_uuid() end,
  created_at, updated_at
from jsonb_to_recordset(%s) as m (
  title text, year integer, runtime integer, genres text[], created_at timestamptz,
  updated_at timestamptz
)
"""
CHANGE = "update movies set title = %s, year = %s, runtime = %s, genres = %s where id = %s"

Bounds = tuple[Any, Any]  # None: no bound


class Values(NamedTuple):
    """What a movie is created with."""

    title: str
    year: int
    runtime: int
    genres: tuple[str, ...]
    created_at: datetime
    updated_at: datetime


class Movie(NamedTuple):
    """A movie of the model."""

    id: int
    title: str
    year: int
    runtime: int
    genres: tuple[str, ...]
    external_id: str | None
    created_at: datetime
    updated_at: datetime


class List(NamedTuple):
    """A list that a client asks for; `page`: a number that `choose_page` brings into range."""

    filters: dict[str, Any]
    sort: str | None
    page_size: int
    page: int | None
    moves: list[str]  # by cursor, from the first page

    @property
    def order(self) -> str:
        """Return the sort, or its default."""
        return self.sort or ("relevance" if "title" in self.filters else "id")

    def parameters(self) -> dict[str, str]:
        """Return the query parameters, without a place."""
        sort = {"sort": self.sort} if self.sort else {}
        filters = {name: format_filter(name, value) for name, value in self.filters.items()}
        return {**filters, **sort, "page_size": str(self.page_size)}

    def find(self, movies: Iterable[Movie]) -> list[Movie]:
        """Return the movies that match, in order."""
        found = [movie for movie in movies if self.matches(movie)]
        return sorted(found, key=self.key, reverse=self.order.startswith("-"))

    def matches(self, movie: Movie) -> bool:
        """Whether the movie matches all filters."""
        return all(is_match(movie, name, value) for name, value in self.filters.items())

    def key(self, movie: Movie) -> tuple[Any, int]:
        """Return the position in the order."""
        if self.order == "relevance":
            return (len(movie.title), -movie.year), movie.id
        return getattr(movie, self.order.removeprefix("-")), movie.id

    def choose_page(self, matches: int) -> int | None:
        """Return a page number that is accepted, or the one after the last page."""
        if self.page is None:
            return None
        if matches > EXACT_TOTAL:
            return 1 + self.page % (NUMBERED_ITEMS // self.page_size)
        return 1 + self.page % (count_pages(matches, self.page_size) + 1)


def count_pages(matches: int, page_size: int) -> int:
    """Return how many pages a list has."""
    return max(1, -(-matches // page_size))


def format_filter(name: str, value: Any) -> str:
    """Return the value of a parameter."""
    if name == "external_id_prefix":
        return str(value)
    if name == "title":
        return " ".join(value)
    if name.startswith("genres"):
        return ",".join(value)
    return ",".join(
        str(low) if low == high else f"{format_bound(low)}..{format_bound(high)}"
        for low, high in ((format_bound(low), format_bound(high)) for low, high in value)
    )


def format_bound(bound: Any) -> str:
    """Return a number or a time; nothing if there is no bound."""
    if isinstance(bound, datetime):
        return bound.isoformat().replace("+00:00", "Z")
    return "" if bound is None else str(bound)


def is_match(movie: Movie, name: str, value: Any) -> bool:
    """Whether a movie matches a filter; test_searches.py has more of titles."""
    if name == "external_id_prefix":
        return (movie.external_id or "").startswith(value)
    if name == "title":
        return {word.lower() for word in value} <= {*movie.title.lower().split(" ")}
    if name.startswith("genres"):
        genres = {genre.lower() for genre in movie.genres}
        return (any if name == "genres_any" else all)(genre.lower() in genres for genre in value)
    found = getattr(movie, name)
    return any(
        (low is None or low <= found) and (high is None or found <= high) for low, high in value
    )


# What hypothesis draws.

values = st.builds(
    Values,
    title=st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join),
    year=st.integers(*YEARS),
    runtime=st.integers(*RUNTIMES),
    genres=st.lists(st.sampled_from(GENRES), min_size=1, max_size=3, unique=True).map(tuple),
    created_at=st.sampled_from(TIMES),
    updated_at=st.sampled_from(TIMES),
)
catalogues = st.integers(0, 60).flatmap(lambda size: st.lists(values, min_size=size, max_size=size))


def bounds(some: st.SearchStrategy[Any]) -> st.SearchStrategy[Bounds]:
    """Draw a range with one end or two."""
    pairs = st.tuples(some | st.none(), some | st.none()).filter(any)
    return pairs.map(lambda pair: pair if None in pair else (min(pair), max(pair)))


FILTERS = {
    "external_id_prefix": st.sampled_from([*WORDS, "The a", "The a:", "%", "th"]),
    "title": st.lists(st.sampled_from(SEARCHED), min_size=1, max_size=3),
    **{
        name: st.lists(st.sampled_from(SEARCHED_GENRES), min_size=1, max_size=2)
        for name in ("genres", "genres_any")
    },
    "year": st.lists(bounds(st.integers(YEARS[0] - 1, YEARS[1] + 1)), min_size=1, max_size=3),
    "runtime": st.lists(bounds(st.integers(*RUNTIMES)), min_size=1, max_size=2),
    **{
        name: st.lists(bounds(st.sampled_from(TIMES)), min_size=1, max_size=1)
        for name in ("created_at", "updated_at")
    },
}
lists = st.builds(
    List,
    filters=st.lists(st.sampled_from(sorted(FILTERS)), unique=True, max_size=3).flatmap(
        lambda names: st.fixed_dictionaries({name: FILTERS[name] for name in names})
    ),
    sort=st.none() | st.sampled_from(SORTS),
    page_size=st.integers(1, 10) | st.just(20),
    page=st.none() | st.integers(0, 60),
    moves=st.lists(st.sampled_from([ON, ON, BACK]), max_size=8),
)
changes = st.lists(
    st.tuples(st.sampled_from(["create", "change", "delete"]), st.integers(1, 60), values),
    max_size=4,
)


def many(examples: int) -> Callable[[Any], Any]:
    """Run so many examples on the database of one test."""
    return bounded(
        max_examples=examples,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        print_blob=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


READ = f"select {', '.join(Movie._fields)} from movies order by id"


def insert(execute: Execute, movies: Iterable[Values]) -> None:
    """Create movies."""
    execute(INSERT, json.dumps([movie._asdict() for movie in movies], default=str))


def read(execute: Execute) -> list[Movie]:
    """Return all movies as they are stored."""
    return [
        Movie(id_, title, year, runtime, tuple(genres), *more)
        for id_, title, year, runtime, genres, *more in execute(READ)
    ]


def parse(movie: dict[str, Any]) -> Movie:
    """Return the movie of a response."""
    return Movie(
        movie["id"],
        movie["title"],
        movie["year"],
        int(movie["runtime"].removesuffix(" mins")),
        tuple(movie["genres"]),
        movie["external_id"],
        datetime.fromisoformat(movie["created_at"]),
        datetime.fromisoformat(movie["updated_at"]),
    )


async def get(client: Client, parameters: dict[str, str]) -> tuple[list[Movie], dict[str, Any]]:
    """Return the movies and the metadata of a page."""
    response = await client.get("/v1/movies", params=parameters)
    assert response.status == 200, await response.text()
    body = await response.json()
    return [parse(movie) for movie in body["movies"]], body["metadata"]


async def compare(client: Client, wanted: List, movies: Iterable[Movie]) -> None:
    """Get a page and those that the moves lead to; all must be as in the model."""
    expected, parameters = wanted.find(movies), wanted.parameters()
    size, count, number = wanted.page_size, len(expected), wanted.choose_page(len(expected))
    low = (number - 1) * size if number else 0
    high = low + size
    place = {"page": str(number)} if number else {}
    total = 0
    for move in [*wanted.moves, ""]:
        found, metadata = await get(client, parameters | place)

        assert found == expected[low:high], (low, high)
        assert bool(metadata[BACK]) == bool(low and found)
        assert bool(metadata[ON]) == (high < count)
        total = total or metadata["total_records"]  # of the first page: cursors carry it
        assert metadata["total_records"] == total
        assert metadata["total_is_estimate"] == (count > EXACT_TOTAL)
        if "page" in place:
            assert metadata["current_page"] == number
            last = NUMBERED_ITEMS // size if count > EXACT_TOTAL else count_pages(count, size)
            assert metadata["last_page"] == last
        if not (cursor := metadata.get(move)):
            continue
        place = {"cursor": cursor}
        low, high = (high, high + size) if move == ON else (max(0, low - size), low)
    assert total == count if count <= EXACT_TOTAL else total > EXACT_TOTAL


def test_the_model_has_every_filter() -> None:
    """A new filter needs values that hypothesis draws, and `is_match`."""
    assert FILTERS.keys() == {field.name for field in fields(Filter)}


@pytest.fixture
def few_are_many(monkeypatch: Patch) -> None:
    """Estimate totals, and end page numbers, as of many movies."""
    monkeypatch.setattr(listing, "EXACT_TOTAL", EXACT_TOTAL)
    monkeypatch.setattr(listing, "NUMBERED_ITEMS", NUMBERED_ITEMS)


@pytest.fixture(params=[True, False], ids=["from memory", "always fetched"])
async def client(start: Start, request: pytest.FixtureRequest) -> Client:
    """A client of a service that keeps pages in memory, or not."""
    return await start(changes__keep_days=30 if request.param else 0)


@pytest.mark.usefixtures("few_are_many")
@many(40)
@given(start=catalogues, some=st.lists(lists, min_size=1, max_size=4), is_analyzed=st.booleans())
async def test_pages_are_as_in_the_model(
    client: Client, execute: Execute, start: list[Values], some: list[List], *, is_analyzed: bool
) -> None:
    """Of catalogues with up to 60 movies, also if PostgreSQL has no statistics yet."""
    execute("truncate movies restart identity")
    insert(execute, start)
    if is_analyzed:
        execute("analyze movies")
    movies = read(execute)

    for _ in range(2):  # until the service has seen the changes, and keeps pages again
        await get(client, {})
    for wanted in [*some, *some]:
        await compare(client, wanted, movies)


@pytest.fixture
def execute(database: str) -> Iterator[Execute]:
    """Run SQL on one connection: there are many examples."""
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        connection.autocommit = True

        def run(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
            cursor.execute(sql, parameters or None)
            return cursor.fetchall() if cursor.description else []

        yield run


@many(25)
@given(
    start=catalogues,
    wanted=lists,
    between=st.lists(changes, max_size=20),
    is_backwards=st.booleans(),
)
async def test_a_movie_that_stays_is_seen_once_and_in_order(  # noqa: PLR0913 - hypothesis's parameters
    client: Client,
    execute: Execute,
    start: list[Values],
    wanted: List,
    between: list[list[Any]],
    *,
    is_backwards: bool,
) -> None:
    """Whatever is created, changed and deleted during the walk, there or back."""
    execute("truncate movies restart identity")
    insert(execute, start)
    parameters = wanted.parameters()
    page, metadata = await get(client, parameters)
    while is_backwards and metadata[ON]:  # to the end
        page, metadata = await get(client, parameters | {"cursor": metadata[ON]})
    direction = BACK if is_backwards else ON
    stayed, pages, changing = {*read(execute)}, [page], iter(between)
    while cursor := metadata[direction]:
        assert len(page) == wanted.page_size or (is_backwards and page is pages[0])
        for kind, number, values_ in next(changing, []):
            if kind == "create":
                insert(execute, [values_])
            elif kind == "change":
                execute(CHANGE, *values_[:3], [*values_.genres], number)
            else:
                execute("delete from movies where id = %s", number)
        stayed &= {*read(execute)}
        page, metadata = await get(client, parameters | {"cursor": cursor})
        pages.append(page)
        assert len(pages) < MAX_PAGES

    is_descending = wanted.order.startswith("-") != is_backwards
    seen = [movie for page in pages for movie in (page[::-1] if is_backwards else page)]
    keys = [wanted.key(movie) for movie in seen]
    assert keys == sorted({*keys}, reverse=is_descending)
    assert all(wanted.matches(movie) for movie in seen)
    assert {movie for movie in stayed if wanted.matches(movie)} <= {*seen}
