"""Tests facets over HTTP: random catalogues, filters and pages."""
# ruff: noqa: S311 - nothing secret

import random
from collections import Counter
from typing import Any

from conftest import Client
from support import Execute, Patch, add_movies

from service.movies import search_help

WORDS, GENRES = ("red", "dark", "love"), ("Drama", "drama", "Comedy", "War", "x,y")
RUNTIMES, YEARS = (1, 29, 30, 95, 119, 120, 2**31 - 1), (1888, 1989, 1990, 1999, 2000)
FILTERS = {
    "title": ["red", "dark lo*", "red 2"],
    "genres": ["drama", "DRAMA,war", "nothing"],
    "genres_any": ["comedy", "comedy,war"],
    "year": ["1990..1999", "1990", "..1990", "1888,2000", "..1900,1999.."],
    "runtime": ["90..119", "30..", "1,95", "0..30,119.."],
}
OWN = {"genres": ("genres", "genres_any"), "year": ("year",), "runtime": ("runtime",)}
INSERT = "insert into movies (title, year, runtime, genres) values (%s, %s, %s, %s)"


def add_movie(execute: Execute) -> None:
    """Insert a random movie."""
    names = random.sample(GENRES, random.randint(1, 3))
    genres = list({name.lower(): name for name in names}.values())
    title = " ".join(random.sample(WORDS, 2))
    execute(INSERT, title, random.choice(YEARS), random.choice(RUNTIMES), genres)


async def get(client: Client, **query: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the movies and the metadata of a page."""
    page = await (await client.get("/v1/movies", params=query)).json()
    return page["movies"], page["metadata"]


async def count(client: Client, **query: str) -> int:
    """Return the total of a list; test_lists_model.py compares it with a model."""
    _, metadata = await get(client, page_size="0", **query)
    return int(metadata["total_records"])


def list_genres(movies: list[dict[str, Any]]) -> list[str]:
    """Return the most frequent spelling of each genre that a filter can name."""
    spelled = Counter(genre for each in movies for genre in each["genres"] if "," not in genre)
    names = sorted(spelled, key=lambda name: (-spelled[name], name))
    return [*{name.lower(): name for name in reversed(names)}.values()]


async def test_each_value_of_a_facet_finds_as_many_movies(client: Client, execute: Execute) -> None:
    """In place of the facet's own filter. There are all values, in order, and the list's total."""
    for _ in range(8):
        execute("delete from movies")
        for _ in range(random.randint(0, 40)):
            add_movie(execute)
        for _ in range(6):
            names = [name for name in FILTERS if random.random() < 0.3]
            wanted = {name: random.choice(FILTERS[name]) for name in names}
            size = random.choice((0, 3))
            movies, metadata = await get(
                client, facets=",".join(OWN), page_size=str(size), **wanted
            )
            total = await count(client, **wanted)
            assert (metadata["total_records"], len(movies)) == (total, min(total, size))
            for name, facet in metadata["facets"].items():
                others = {key: wanted[key] for key in wanted if key not in OWN[name]}
                found = {each["value"]: each["movies"] for each in facet["values"]}
                movies, _ = await get(client, page_size="100", **others)
                assert found == {
                    value: await count(client, **others, **{name: value}) for value in found
                }
                if name == "genres":
                    assert {*found} == {*list_genres(movies)}
                    assert [*found] == sorted(found, key=lambda value: (-found[value], value))
                else:
                    assert sum(found.values()) == len(movies)
                    starts = [int(value.partition("..")[0]) for value in found]
                    assert starts == sorted(starts)


async def test_estimates_agree_with_the_total(
    client: Client, execute: Execute, monkeypatch: Patch
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
    add_movies(execute, *"aaa")
    first = await client.get("/v1/movies?facets=year&page_size=1")
    link = str(first.links["next"]["url"]).partition(f":{client.port}")[2]
    second = (await (await client.get(link)).json())["metadata"]
    cursor = second["previous_cursor"]
    asked = await client.get(f"/v1/movies?page_size=1&facets=year&cursor={cursor}")

    assert "facets" not in second
    values = (await asked.json())["metadata"]["facets"]["year"]["values"]
    assert values == [{"value": "2000..2009", "movies": 3}]
