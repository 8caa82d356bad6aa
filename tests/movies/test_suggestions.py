"""Tests the titles that are suggested if a search finds nothing."""

import time
from typing import Any

import pytest
from conftest import Client
from structlog.testing import capture_logs
from support import Execute, add_movies, hold

TITLES = """
Casablanca|Star Wars|The Lord of the Rings|Schindler's List|Spider-Man|The Godfather|Gladiator|Titanic|Inception
Jurassic Park|Forrest Gump|The Silence of the Lambs|Pulp Fiction|Braveheart|Amélie|The Terminator|Goodfellas
Back to the Future|The Matrix|Interstellar|Psycho|Vertigo|Rear Window|Citizen Kane|Raging Bull|Rocky|Rocky IV|Alien
Saving Private Ryan|Toy Story|Finding Nemo|Ratatouille|Monsters, Inc.|The Shining|Full Metal Jacket|Οδυσσέας|Броненосец
A Beautiful Mind|Toy Story 3|The Usual Suspects|The Incredible Hulk|2001: A Space Odyssey|Moby Dick|The Forest
Ghostbusters|Ghost|千と千尋の神隠し|반드시 잡는다|M*A*S*H|The Man|Star Trek
""".strip().replace("\n", "|")  # noqa: E501 - a table
# A search that finds nothing, and the title that comes first.
CLOSEST = {
    # a letter is missing, added or wrong, or two changed places
    "casablnca": "Casablanca",
    "cassablanca": "Casablanca",
    "casabalnca": "Casablanca",
    "asablanca": "Casablanca",
    "casablancaa": "Casablanca",
    "vertgo": "Vertigo",
    "vetrigo": "Vertigo",
    "stra wars": "Star Wars",
    "lord of the rigns": "The Lord of the Rings",
    "the lrod of the rngs": "The Lord of the Rings",
    "shindlers list": "Schindler's List",
    "schindler's lst": "Schindler's List",
    "spidermen": "Spider-Man",
    "a beatiful mind": "A Beautiful Mind",
    "amelia": "Amélie",
    "phsycho": "Psycho",
    "savign private rian": "Saving Private Ryan",
    "toy stroy 3": "Toy Story 3",
    "οδυσεας": "Οδυσσέας",
    "бронeносец": "Броненосец",
    "반드지 잡는다": "반드시 잡는다",
    "mash film": "M*A*S*H",
    # ... to a word of another title
    "forest gump": "Forrest Gump",
    "usual suspect": "The Usual Suspects",
    "ghost wars": "Ghost",
    # a number, beside a mistake
    "rocki 4": "Rocky IV",
    "toy stroy three": "Toy Story 3",
    "2001 a space odissey": "2001: A Space Odyssey",
    # one or two words too many, or a year
    "casablanca xyzzyx": "Casablanca",
    "casablanca full xyzzyx": "Casablanca",
    "titanic 2000": "Titanic",
    "forrest gump full movie": "Forrest Gump",
    # the start of a word, and a mistake in front of a `*`
    "the incred": "The Incredible Hulk",
    "the silence of the la": "The Silence of the Lambs",
    "ghostb": "Ghostbusters",
    "termintor*": "The Terminator",
    "schidl*": "Schindler's List",
    # joined and split words
    "starwars": "Star Wars",
    "jurassicpark": "Jurassic Park",
    "god father 2": "The Godfather",
    "ragin bul l": "Raging Bull",
    "rocky4": "Rocky IV",
    # a pair of a script without blanks
    "千と千尋の神隠け": "千と千尋の神隠し",
}


@pytest.fixture
def catalogue(execute: Execute) -> None:
    """Insert the titles; without statistics, as these would change the weights of the words."""
    execute("alter table movies set (autovacuum_enabled = false)")
    add_movies(execute, *TITLES.split("|"))


async def get_metadata(client: Client, **parameters: str) -> dict[str, Any]:
    """List the movies; return the metadata."""
    response = await client.get("/v1/movies", params=parameters)
    assert response.status == 200
    return dict((await response.json())["metadata"])


@pytest.mark.usefixtures("catalogue")
async def test_the_closest_title_comes_first(client: Client) -> None:
    """Of at most five; each finds a movie."""
    suggested = {
        search: (await get_metadata(client, title=search)).get("suggestions", [])
        for search in CLOSEST
    }
    titles = {title for found in suggested.values() for title in found}
    totals = {title: (await get_metadata(client, title=title))["total_records"] for title in titles}

    wrong = {search: found for search, found in suggested.items() if found[:1] != [CLOSEST[search]]}
    assert wrong == {}
    assert max(map(len, suggested.values())) <= 5
    assert min(totals.values()) > 0


async def test_a_rare_word_weighs_more_than_several_frequent_ones(
    client: Client, execute: Execute
) -> None:
    """As the statistics count them. The other way round, a superfluous article hides no title."""
    add_movies(execute, *[f"The Movie {n}" for n in range(100, 130)], "Inception")
    add_movies(execute, "Some Girls", "Here Come the Girls")
    execute("analyze movies")
    searches = ["inception the movie", "the inception movie", "the some girls"]
    found = [(await get_metadata(client, title=search))["suggestions"] for search in searches]

    assert [each[0] for each in found[:2]] == ["Inception"] * 2
    assert found[2][:2] == ["Some Girls", "Here Come the Girls"]


async def test_words_as_they_are_come_before_corrections(client: Client, execute: Execute) -> None:
    """However many movies have a similar word: `mad` may be `man`."""
    add_movies(execute, *[f"Man {n}" for n in range(400)])
    add_movies(execute, "Mad Max", year=1979)
    found = [
        await get_metadata(client, title="mad ma", **filters) for filters in ({}, {"year": "1979"})
    ]

    assert [each["suggestions"][0] for each in found] == ["Mad Max"] * 2


async def test_a_title_that_is_a_year_is_suggested(client: Client, execute: Execute) -> None:
    """Of the movies that have it, first the one of the other year."""
    add_movies(execute, "1984", year=1956)
    add_movies(execute, "Class of 1984", year=1982)

    for search, closest in {"1984 1956": "1984", "1982 1984": "Class of 1984"}.items():
        assert (await get_metadata(client, title=search))["suggestions"][0] == closest


async def test_spellings_of_one_title_are_suggested_once(client: Client, execute: Execute) -> None:
    """The other places are for other titles."""
    spellings = ["Plimsorax", "PLIMSORAX", "Plimsorax!", "Plim-Sorax", "Plímsorax", "Plim sorax"]
    add_movies(execute, *spellings, "Plimsorax and a Longer Title")
    suggestions = (await get_metadata(client, title="plimsorx"))["suggestions"]

    assert len(suggestions) == 2
    assert suggestions[0] in spellings
    assert suggestions[1] == "Plimsorax and a Longer Title"


@pytest.mark.usefixtures("catalogue")
async def test_nothing_is_suggested_if_no_title_is_close(client: Client) -> None:
    """Nor for signs, or for a year alone."""
    searches = ["xyzzyx", "casanova of the nile", "?!", "*", "19*9", "1999", "x" * 500]

    assert [
        (await get_metadata(client, title=search)).get("suggestions") for search in searches
    ] == [[]] * len(searches)


async def test_a_title_is_suggested_as_soon_as_it_is_created_or_changed(
    client: Client, execute: Execute
) -> None:
    """Whoever writes it, and nobody runs a command."""
    body = {"title": "Vaiana", "year": 2016, "runtime": "107 mins", "genres": ["animation"]}
    await client.post("/v1/movies", json=body)
    created = await get_metadata(client, title="vaianna")
    await client.patch("/v1/movies/1", json={"title": "Moana"})
    changed = [await get_metadata(client, title=title) for title in ("vaianna", "maona")]
    execute("update movies set title = 'Oceania'")
    by_sql = await get_metadata(client, title="ocaenia")

    assert created["suggestions"] == ["Vaiana"]
    assert [each["suggestions"] for each in changed] == [[], ["Moana"]]
    assert by_sql["suggestions"] == ["Oceania"]


async def test_a_word_is_added_once(execute: Execute) -> None:
    """Not words in scripts without blanks, signs, or genres: nothing corrects a search to these."""
    for _ in range(2):
        add_movies(execute, "Moana: Vaiana", "moana!", "千尋", "$", "x" * 31)

    words = "select word from search_words order by word"
    assert execute(words) == [("moana",), ("vaiana",)]


async def test_filters_count_while_the_closest_are_looked_for(
    client: Client, execute: Execute
) -> None:
    """Not only for the first 300 movies with the words, or for those that have all words."""
    add_movies(execute, *["House of Dust"] * 400, "Titanic Shoppe", year=1950)
    add_movies(execute, "House", "Titanic", year=1997)

    for title, closest in (("huose", "House"), ("titanic shopp", "Titanic")):
        for filters in ({"year": "1997"}, {"year": "1990..1999", "genres": "x"}):
            found = await get_metadata(client, title=title, **filters)

            assert found["suggestions"] == [closest]


@pytest.mark.usefixtures("catalogue")
async def test_other_lists_have_no_suggestions(client: Client) -> None:
    """Only a search of titles that finds nothing has them."""
    lists = [{}, {"title": "casablanca"}, {"genres": "horror"}]

    assert ["suggestions" in await get_metadata(client, **each) for each in lists] == [False] * 3


@pytest.mark.usefixtures("catalogue")
async def test_slow_suggestions_are_left_out(client: Client, database: str) -> None:
    """The list comes without them, and that is not logged as a failure."""
    with hold(database, "lock table search_words"), capture_logs() as logs:
        started = time.monotonic()
        metadata = await get_metadata(client, title="casablnca")
        took = time.monotonic() - started

    assert (metadata["total_records"], metadata["suggestions"]) == (0, [])
    assert took < 1
    assert [each["event"] for each in logs] == ["request"]


@pytest.mark.parametrize("words", [1, 2, 4, 10])
def test_frequent_words_are_no_conditions(execute: Execute, words: int) -> None:
    """The work is bounded by the number of movies that have the words, not by a time."""
    titles = "select string_agg('w' || chr(97 + n) || 'rd', ' ') from generate_series(0, 9) as n"
    execute(
        "insert into movies (title, year, runtime, genres)"
        f" select ({titles}), 2000, 1, '{{x}}' from generate_series(1, 20)"
    )
    execute("analyze movies")
    typos = " ".join([f"w{chr(97 + n)}rdd" for n in range(words)])
    find = "select count(*) from closest_movies(%s, '{}'::jsonb)"

    few = execute(find, typos)
    execute("update pg_class set reltuples = 2e6 where oid = 'movies'::regclass")

    assert (few, execute(find, typos)) == ([(20,)], [(0,)])
