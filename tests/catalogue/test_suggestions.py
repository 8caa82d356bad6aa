"""Tests what is suggested if a search of titles finds nothing."""

import time
from typing import Any

import pytest
from conftest import Client
from structlog.testing import capture_logs
from support import Execute, hold

from service.catalogue.suggestions import MAX_CANDIDATES, combine

TITLES = """
Casablanca|Star Wars|The Lord of the Rings|Schindler's List|Spider-Man|The Godfather|Gladiator|Titanic|Inception
Jurassic Park|Forrest Gump|The Silence of the Lambs|Pulp Fiction|Braveheart|Amélie|Terminator|Goodfellas
Back to the Future|The Matrix|Interstellar|Psycho|Vertigo|Rear Window|Citizen Kane|Raging Bull|Rocky|Alien
Saving Private Ryan|Toy Story|Finding Nemo|Ratatouille|Monsters, Inc.|The Shining|Full Metal Jacket|Οδυσσέας|Броненосец
A Beautiful Mind|Toy Story 3
""".strip().replace("\n", "|")  # noqa: E501 - a table
TYPOS = {
    "casablnca": "casablanca",
    "cassablanca": "casablanca",
    "casabalnca": "casablanca",
    "starwars": "star wars",
    "stra wars": "star wars",
    "lord of the rigns": "lord of the rings",
    "the lrod of the rngs": "the lord of the rings",
    "shindlers list": "schindlers list",
    "spidermen": "spiderman",
    "godfahter": "godfather",
    "gladaitor": "gladiator",
    "titanik": "titanic",
    "incepton": "inception",
    "jurasic park": "jurassic park",
    "jurassicpark": "jurassic park",
    "forest gump": "forrest gump",
    "silense of the lambs": "silence of the lambs",
    "pulp ficton": "pulp fiction",
    "bravehart": "braveheart",
    "amelia": "amelie",
    "termiantor": "terminator",
    "goodfelas": "goodfellas",
    "back to the futur": "back to the future",
    "matirx": "matrix",
    "intersteller": "interstellar",
    "phsyco": "psycho",
    "vertgo": "vertigo",
    "citzen kane": "citizen kane",
    "rager bull": "bull",
    "savign private rian": "saving private ryan",
    "ratatuille": "ratatouille",
    "monstres inc": "monsters inc",
    "shinning": "shining",
    "οδυσεας": "οδυσσεασ",  # as it is folded
    "бронeносец": "броненосец",
    "casablanca xyzzyx": "casablanca",
    "a beatiful mind": "a beautiful mind",
    "toy stroy 3": "toy story 3",
    "schindler's lst": "schindler s list",
}


@pytest.fixture
def catalogue(execute: Execute) -> None:
    """Insert the titles, and collect their words."""
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select unnest(%s), 2000, 100, '{drama}'::text[]",
        TITLES.split("|"),
    )
    execute("select refresh_title_words()")


async def get_metadata(client: Client, **parameters: str) -> dict[str, Any]:
    """List the movies; return the metadata."""
    response = await client.get("/v1/movies", params=parameters)
    assert response.status == 200
    return dict((await response.json())["metadata"])


@pytest.mark.usefixtures("catalogue")
async def test_typos_are_corrected(client: Client) -> None:
    """One of up to three suggestions is what was meant; each of them finds something."""
    suggested = {
        typo: (await get_metadata(client, title=typo)).get("suggestions", []) for typo in TYPOS
    }
    texts = {text for found in suggested.values() for text in found}
    totals = {text: (await get_metadata(client, title=text))["total_records"] for text in texts}

    assert {typo: found for typo, found in suggested.items() if TYPOS[typo] not in found} == {}
    assert max(map(len, suggested.values())) <= 3
    assert min(totals.values()) > 0


@pytest.mark.usefixtures("catalogue")
async def test_suggestions_match_the_other_filters(client: Client) -> None:
    """A suggestion finds a movie together with them."""
    found = await get_metadata(client, title="casablnca", genres="drama", year="2000")
    missing = await get_metadata(client, title="casablnca", year="1942")

    assert (found["suggestions"], missing["suggestions"]) == (["casablanca"], [])


@pytest.mark.usefixtures("catalogue")
async def test_words_in_no_alphabet_are_not_corrected(client: Client) -> None:
    """The pairs of a Japanese title are no words; without them, nothing is left."""
    assert (await get_metadata(client, title="千と千尋の神隠x"))["suggestions"] == []


@pytest.mark.usefixtures("catalogue")
async def test_other_lists_have_no_suggestions(client: Client) -> None:
    """Only a search of titles that finds nothing has them."""
    lists = [{}, {"title": "casablanca"}, {"genres": "horror"}]

    assert ["suggestions" in await get_metadata(client, **each) for each in lists] == [False] * 3


@pytest.mark.usefixtures("catalogue")
async def test_a_slow_correction_is_left_out(client: Client, database: str) -> None:
    """The list comes without suggestions."""
    with hold(database, "lock table title_words"), capture_logs() as logs:
        started = time.monotonic()
        metadata = await get_metadata(client, title="casablnca")
        took = time.monotonic() - started

    assert (metadata["total_records"], metadata["suggestions"]) == (0, [])
    assert took < 1
    assert [each["event"] for each in logs] == ["request"]


@pytest.mark.usefixtures("catalogue")
async def test_slow_filters_are_not_waited_for(client: Client, execute: Execute) -> None:
    """All suggestions are tried with them for 50 ms together."""
    execute(
        "create or replace function genres_query(text[]) returns tsquery language plpgsql volatile"
        " as $$ begin perform pg_sleep(2); return quote_lexeme('x'); end $$"
    )
    with capture_logs() as logs:
        started = time.monotonic()
        metadata = await get_metadata(client, title="casablnca", genres="drama")
        took = time.monotonic() - started

    assert (metadata["total_records"], metadata["suggestions"]) == (0, [])
    assert took < 1
    assert [each["event"] for each in logs] == ["request"]


def test_the_work_is_bounded() -> None:
    """However many words and corrections there are."""
    words = [(f"w{number}", True, ["a", "b", "c", "d", "e", "f"]) for number in range(10)]

    searches = combine(words)

    assert len(searches) == MAX_CANDIDATES
    assert searches[0] == "w0 w1 w2 w3 w4 w5 w6 w7 w8 a"
