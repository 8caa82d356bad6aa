"""Compares facets over HTTP with a model: random catalogues, filters and pages."""
# ruff: noqa: S311 - nothing secret

import random
from collections import Counter
from typing import Any

import pytest
from conftest import Client
from support import Execute

from service.movies import search_help
from service.movies.parameters import FACETS as NAMES

WORDS, GENRES = ("red", "dark", "love"), ("Drama", "drama", "Comedy", "War", "x,y")
RUNTIMES, YEARS = (1, 29, 30, 95, 119, 120, 2**31 - 1), (1888, 1989, 1990, 1999, 2000)
FACETS = "genres,year,runtime"
INSERT = "insert into movies (title, year, runtime, genres) values (%s, %s, %s, %s)"


def make_movie() -> dict[str, Any]:
    """Return a random movie."""
    names = random.sample(GENRES, random.randint(1, 3))
    genres = list({name.lower(): name for name in names}.values())
    title = " ".join(random.sample(WORDS, 2))
    year, runtime = random.choice(YEARS), random.choice(RUNTIMES)
    return {"title": title, "year": year, "runtime": runtime, "genres": genres}


def make_filters() -> dict[str, str]:
    """Return random filters."""
    wanted: dict[str, list[str]] = {
        "title": ["red", "dark lo*", "red 2"],
        "genres": ["drama", "DRAMA,war", "nothing"],
        "genres_any": ["comedy", "comedy,war"],
        "year": ["1990..1999", "1990", "..1990", "1888,2000", "..1900,1999.."],
        "runtime": ["90..119", "30..", "1,95", "0..30,119.."],
    }
    return {name: random.choice(values) for name, values in wanted.items() if random.random() < 0.3}


def has(movie: dict[str, Any], name: str, value: str) -> bool:
    """Whether a movie matches a filter."""
    if name == "title":
        return all(
            any(
                word.startswith(part[:-1]) if part.endswith("*") else word == part
                for word in movie["title"].split()
            )
            for part in value.split()
        )
    if name.startswith("genres"):
        own = {genre.lower() for genre in movie["genres"]}
        wanted = {genre.lower() for genre in value.split(",")}
        return wanted <= own if name == "genres" else bool(wanted & own)
    ranges = [part.partition("..") for part in value.split(",")]
    return any(
        int(low or 0) <= movie[name] <= int((high or 2**31) if dots else low)
        for low, dots, high in ranges
    )


def count(
    movies: list[dict[str, Any]], wanted: dict[str, str], facet: str
) -> list[tuple[str, int]]:
    """Return the values of a facet with their numbers, as the response has them."""
    own = ("genres", "genres_any") if facet == "genres" else (facet,)
    others = {name: value for name, value in wanted.items() if name not in own}
    found = [movie for movie in movies if all(has(movie, *each) for each in others.items())]
    if facet == "genres":
        spelled = Counter(genre for movie in found for genre in movie["genres"] if "," not in genre)
        merged = Counter({name.lower(): 0 for name in spelled})
        for name, number in spelled.items():
            merged[name.lower()] += number
        names = {
            entry: min(
                (each for each in spelled if each.lower() == entry),
                key=lambda each: (-spelled[each], each),
            )
            for entry in merged
        }
        values = [(names[entry], number) for entry, number in merged.items()]
        return sorted(values, key=lambda value: (-value[1], value[0]))
    width = {"year": 10, "runtime": 30}[facet]
    starts = Counter(movie[facet] // width * width for movie in found)
    return [
        (f"{low}..{min(low + width - 1, 2**31 - 1)}", number)
        for low, number in sorted(starts.items())
    ]


async def test_facets_are_those_of_a_model(client: Client, execute: Execute) -> None:
    """Each leaves out its own filter; the total is that of the list."""
    for _ in range(12):
        execute("delete from movies")
        movies = [make_movie() for _ in range(random.randint(0, 40))]
        for movie in movies:
            execute(INSERT, *movie.values())
        for _ in range(8):
            wanted = make_filters()
            query = {**wanted, "facets": FACETS, "page_size": str(random.choice((0, 3)))}
            response = await client.get("/v1/movies", params=query)
            page = await response.json()
            found = {
                name: [(each["value"], each["movies"]) for each in facet["values"]]
                for name, facet in page["metadata"]["facets"].items()
            }
            expected = {name: count(movies, wanted, name) for name in NAMES}
            assert found == expected, query
            total = sum(all(has(movie, *each) for each in wanted.items()) for movie in movies)
            assert page["metadata"]["total_records"] == total
            assert len(page["movies"]) == min(total, int(query["page_size"]))


async def test_estimates_agree_with_the_total(
    client: Client, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are marked; a value has at most the total, or at least if the list is filtered by it."""
    monkeypatch.setattr(search_help, "EXACT_TOTAL", 50)
    execute(
        "insert into movies (title, year, runtime, genres) select 'a', 1980 + n % 25, n % 100 + 1,"
        " '{Drama}' from generate_series(1, 2000) n; analyze movies"
    )
    path = "/v1/movies?facets=genres,year&page_size=0"
    everything = (await (await client.get(path)).json())["metadata"]
    nineties = (await (await client.get(f"{path}&year=1990..1999")).json())["metadata"]

    assert everything["facets"]["year"]["is_estimate"]
    years = {each["value"]: each["movies"] for each in everything["facets"]["year"]["values"]}
    assert sum(years.values()) == everything["total_records"] == 2000
    assert everything["facets"]["genres"]["values"] == [{"value": "Drama", "movies": 2000}]
    own = {each["value"]: each["movies"] for each in nineties["facets"]["year"]["values"]}
    assert own["1990..1999"] == nineties["total_records"] == years["1990..1999"]


async def test_other_pages_have_no_facets(client: Client, execute: Execute) -> None:
    """Unless they are asked for: the links do not."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select 'a', 2000, 1, '{x}' from generate_series(1, 3)"
    )
    first = await client.get("/v1/movies?facets=year&page_size=1")
    link = str(first.links["next"]["url"]).partition(f":{client.port}")[2]
    second = (await (await client.get(link)).json())["metadata"]
    cursor = second["previous_cursor"]
    asked = await client.get(f"/v1/movies?page_size=1&facets=year&cursor={cursor}")

    assert "facets" not in second
    values = (await asked.json())["metadata"]["facets"]["year"]["values"]
    assert values == [{"value": "2000..2009", "movies": 3}]


@pytest.mark.parametrize("title", ["rocky 2*", "rocky two*", "rocky ii*", "2* rocky"])
async def test_a_number_is_found_in_every_spelling_while_it_is_typed(
    client: Client, execute: Execute, title: str
) -> None:
    """As without the star."""
    for spelling in ("2", "II", "Two"):
        execute(INSERT, f"Rocky {spelling}", 1979, 119, ["Drama"])
    response = await client.get("/v1/movies", params={"title": title})
    assert (await response.json())["metadata"]["total_records"] == 3
