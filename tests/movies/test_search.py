"""Tests search: the functions of the migrations; test_searches.py has what people type."""

import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2
import pytest
from conftest import ROOT
from servers import migrate, run
from support import Execute

from service.database.migrations import runner as migrations
from service.errors import OperatorError
from service.movies.movie import COLUMNS, Movie
from service.web.fields import BLANKS


@pytest.fixture(scope="module", params=["server", "libc"])
def template(
    request: pytest.FixtureRequest, template: str, server_url: str, maintain: Callable[[str], None]
) -> Iterator[str]:
    """Return the name of a migrated database: in the server's locale, and in one of libc.

    The embedded PostgreSQL has a locale of its own. Before version 18, PostgreSQL also asks libc
    what a blank is in a query.
    """
    if request.param == "server":
        yield template
        return
    name = f"test_libc_{os.getpid()}"
    with closing(psycopg2.connect(server_url)) as connection:
        provider = "locale_provider libc" if connection.server_version >= 150000 else ""
    try:
        maintain(f"create database {name} template template0 {provider} locale 'C.UTF-8'")
    except psycopg2.Error as error:
        pytest.skip(f"needs the locale C.UTF-8 of libc: {error}")
    migrations.upgrade(
        urlsplit(server_url)._replace(path=f"/{name}").geturl(), ROOT / "migrations", lambda _: None
    )
    yield name
    maintain(f"drop database {name}")


def test_ascii_is_folded_as_all_else(execute: Execute) -> None:
    """Every character; one that is not ASCII selects the slow path for the whole text."""
    texts = [f"A{chr(n)}b {chr(n)}{chr(n)}Cd{chr(n)}" for n in range(1, 128)]

    rows = execute(
        "select text, mark_signs(fold_letters(text || 'e')), mark_signs(fold_letters(text || 'é'))"
        " from unnest(%s) as text",
        texts,
    )

    assert len(rows) == 127
    assert [text for text, short, long in rows if short != long] == []


# Letters and marks of scripts without blanks, of which a part is a word.
RUNS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
)
FORMS = {"<super>", "<sub>", "<circle>", "<square>", "<fraction>"}


def classify(character: str) -> str | None:
    """Return what a character does within a word: "sign", "nothing", "letter"; None: any.

    Of the characters of Unicode 3.2, which every PostgreSQL knows.
    """
    parts = unicodedata.normalize("NFKD", character)
    if unicodedata.ucd_3_2_0.category(character) in ("Cn", "Co", "Cs") or RUNS.search(parts):
        return None
    category = unicodedata.category(character)
    if not BLANKS.sub("", character) and category in ("Cf", "Mn", "Lo"):
        return "nothing"
    form = unicodedata.decomposition(character).split(" ")[0]
    if category[0] in "PSZ" or category == "Cc" or form in FORMS:
        return "sign"
    is_letter = category in ("Nd", "Lu", "Ll", "Lt", "Lo") and parts.isalnum()
    return "letter" if is_letter else None


def test_each_character_divides_a_word_or_does_not(execute: Execute) -> None:
    """Signs and blanks of all scripts do; letters, digits, and invisible characters do not."""
    expected = {chr(n): classify(chr(n)) for n in (*range(1, 0xD800), *range(0xE000, 0x110000))}
    characters = [character for character, kind in expected.items() if kind]

    rows = execute(
        "select c, t.search @@ title_query('ab') and t.search @@ title_query('cd'),"
        " t.search @@ title_query('abcd') from unnest(%s) as c"
        " cross join lateral (select movie_search('ab' || c || 'cd', '{}') as search) as t",
        characters,
    )

    found = {
        character: "sign" if is_divided else "nothing" if is_joined else "letter"
        for character, is_divided, is_joined in rows
    }
    wrong = {hex(ord(c)): (kind, expected[c]) for c, kind in found.items() if kind != expected[c]}
    assert wrong == {}
    assert {*found.values()} == {"sign", "nothing", "letter"}


def test_each_digit_is_found_by_each_other_form(execute: Execute) -> None:
    """Of all scripts, full-width, circled, as a superscript."""
    forms = [
        character
        for character in map(chr, (*range(1, 0xD800), *range(0xE000, 0x20000)))
        if unicodedata.digit(character, -1) >= 0
        and unicodedata.ucd_3_2_0.category(character) in ("Nd", "No")
        and not 0x1369 <= ord(character) <= 0x1371  # Ethiopic ones are not of a decimal system
    ]

    rows = execute(
        "select form from unnest(%s, %s) as d (form, digit)"
        " where movie_search('Rocky ' || form, '{}') @@ title_query(digit) is not true"
        " or movie_search(digit, '{}') @@ title_query(form) is not true",
        forms,
        [str(unicodedata.digit(form)) for form in forms],
    )

    assert len(forms) > 300
    assert rows == []


@pytest.mark.parametrize("letters", [99, 100, 101, 250])
def test_a_word_is_known_by_its_first_100_characters(execute: Execute, letters: int) -> None:
    """Also if the word is ASCII."""
    find = "select title_entries(mark_signs(fold_letters(%s)))"
    titles = [f"of {'A' * letters}", f"òf {'A' * letters}"]

    entries = [execute(find, title)[0][0] for title in titles]

    assert entries == [["of", "a" * min(letters, 100)]] * 2


@pytest.mark.parametrize(
    ("title", "genres", "found_by"),
    [
        ("Face/Off", ["Action", " sci-FI\u00a0"], [" action", " sci-fi", "face", "off", "faceoff"]),
        ("  S.W.A.T. ", ["b", "a"], [" a", " b", "a", "s", "t", "w", "swat"]),
        ("***", ["C#", "C++"], [" c#", " c++", "＊＊＊"]),
        ("Ten 10 ten", ["1", "2", "3", "4", "5"], [" 1", " 2", " 3", " 4", " 5", "10", "ten"]),
        ("Q&A", ["g" * 101], [" " + "g" * 100, "and", "a", "q", "qa"]),
    ],
)
def test_words_and_genres_are_told_apart(
    execute: Execute, title: str, genres: list[str], found_by: list[str]
) -> None:
    """Every genre starts with a space."""
    ((words,),) = execute("select tsvector_to_array(movie_search(%s, %s))", title, genres)

    assert sorted(words) == sorted(found_by)


# `%%`: for psycopg2.
NOT_FOUND = """
select text from unnest(%s) as text
where movie_search(text, '{}') @@ title_query(text) is not true
  or text like 'a%%b' and movie_search(text || 'cd', '{}') @@ title_query(text || 'c*') is not true
"""
# Scripts of thousands of characters that are all of one kind: every 37th stands for them.
UNIFORM = [range(0x3400, 0xA000), range(0xAC00, 0xD7A4), range(0xE000, 0xF900)]


def test_every_title_is_found_by_itself(execute: Execute) -> None:
    """Whatever characters it has, and if there are only signs, marks or emoji."""
    codes = [
        code
        for code in (*range(1, 0xD800), *range(0xE000, 0x10000), *range(0x1F000, 0x20100))
        if code % 37 == 0 or not any(code in script for script in UNIFORM)
    ]
    characters = [chr(code) for code in codes]
    texts = [
        *(f"a{character}b" for character in characters),
        *(character for character in characters if not character.isspace()),
        *(f"{character}{character}'" for character in characters),
    ]

    assert execute(NOT_FOUND, texts) == []


def test_the_longest_titles_have_entries(execute: Execute) -> None:
    """An entry may have 2,046 bytes; characters that NFKD makes longer are joined by signs."""
    characters = [chr(code) for code in range(0xA0, 0x10000) if not 0xD800 <= code < 0xE000]
    longest = sorted(characters, key=lambda c: len(unicodedata.normalize("NFKD", c).encode()))[
        -2000:
    ]
    texts = ["-".join([c * (496 // len(c.encode()) // 2)] * 2) for c in longest]

    assert execute(NOT_FOUND, texts) == []


def test_rows_are_restored_without_a_search_path(execute: Execute) -> None:
    """As pg_restore loads them."""
    execute(
        "begin; set local search_path = '';"
        " insert into public.movies (title, year, runtime, genres)"
        " values ('千と千尋の神隠し', 2001, 125, '{Anime}'), ('X-Men', 2000, 104, '{a}'); commit"
    )

    find = "select title from movies where search @@ title_query(%s)"
    assert execute(find, "千尋") == [("千と千尋の神隠し",)]
    assert execute(find, "xmen") == [("X-Men",)]


# `lower` of a Turkish locale, which few servers have.
LOWER_IN_TURKISH = """
create schema turkish;
create function turkish.lower(text) returns text language sql immutable
  return pg_catalog.lower(translate($1, 'Iİ', 'ıi'));
"""


def test_case_is_folded_alike_in_every_locale(empty_database: str) -> None:
    """In a database with a Turkish locale, I is found as i."""
    name = urlsplit(empty_database).path[1:]
    path = f"alter database {name} set search_path = public, turkish, pg_catalog"
    run(empty_database, LOWER_IN_TURKISH, path)
    migrate(empty_database)
    add = (
        "insert into movies (title, year, runtime, genres)"
        " select unnest('{TITANIC,TİTANİC!}'::text[]), 1997, 195, '{drama}'"
    )
    find = "select title from movies where search @@ title_query('titanic') order by id"

    assert run(empty_database, add, find) == [("TITANIC",), ("TİTANİC!",)]


def test_earlier_movies_get_the_words_of_now(empty_database: str, tmp_path: Path) -> None:
    """And keep their version; a blank title of theirs, which nobody can see, is named first."""
    for path in (ROOT / "migrations").iterdir():
        if path.name < "20261128200100":
            shutil.copy(path, tmp_path)
    migrations.upgrade(empty_database, tmp_path, lambda _: None)
    titles = ["The LEGO™ Movie", "Alien³", "٢٠٠١", "नमस्ते।", "Moana"]
    with closing(psycopg2.connect(empty_database)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(
            "insert into movies (title, year, runtime, genres)"
            " select t, 2000, 1, array[u&'a\\2003', 'A']"
            " from unnest(%s) with ordinality as t (t, n)"
            " order by n",
            [[*titles, "\ufffc"]],
        )
        with pytest.raises(OperatorError, match="invisible characters alone are in the way: 1"):
            migrate(empty_database)
        cursor.execute("delete from movies where id = 6")
        migrate(empty_database)
        cursor.execute(
            "select title, version from movies, unnest(%s) as words"
            " where search @@ (title_query(words) && genres_query('{a}')) order by id",
            [["lego movie", "alien", "2001", "नमस्ते", "moana"]],
        )
        assert cursor.fetchall() == [(title, 1) for title in titles]
        # Two spellings of a genre, which only new movies may not have.
        cursor.execute("update movies set year = 2001 where id = 1 returning version, search")
        assert cursor.fetchone() == (2, "' a' 'lego' 'legotm' 'movie' 'the' 'tm'")
        cursor.execute(
            "select array_agg(word order by word) from search_words where word ~ '^[a-z]'"
        )
        assert cursor.fetchone() == (
            ["alien", "alien3", "lego", "legotm", "moana", "movie", "the", "tm"],
        )


@pytest.mark.parametrize("year", [-(2**31), 1888, 2026, 2**31 - 1])
def test_the_rank_of_a_movie_is_the_same_in_python(execute: Execute, year: int) -> None:
    """A character more counts more than any years; the cursor has the value of Python."""
    titles = ["é", "8½", "日本語", "\U0001f3ac", "e\u0301", "👩‍👩‍👧 x", "x" * 500]

    rows = execute("select title, search_rank(title, %s) from unnest(%s) as title", year, titles)
    [(is_shorter_first,)] = execute(
        "select search_rank('x', -2147483648) < search_rank('xx', 2147483647)"
    )

    nothing = Movie._make([None] * len(COLUMNS))
    movies = [nothing._replace(title=title, year=year) for title in titles]
    assert rows == [(movie.title, movie.relevance) for movie in movies]
    assert is_shorter_first
