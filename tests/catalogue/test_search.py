"""Tests search: the functions fold_text and movie_search of the migrations."""

import shutil
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from conftest import ROOT
from support import Execute

from service.database.migrations import runner as migrations

# A character that is not ASCII, but folds to ASCII, selects the slow path for the whole text.
BOTH_WAYS = "select fold_text(%s), fold_text(%s)"


def test_ascii_is_folded_as_all_else(execute: Execute) -> None:
    """Every character, alone and beside others."""
    for code in range(1, 128):
        text = f"A{chr(code)}b {chr(code)}{chr(code)}Cd{chr(code)}"

        ((short, long),) = execute(BOTH_WAYS, f"{text}e", f"{text}é")

        assert short == long


@pytest.mark.parametrize("letters", [98, 99, 100, 101, 250])
def test_a_word_is_known_by_its_first_100_characters(execute: Execute, letters: int) -> None:
    """Also if the word is ASCII."""
    ((short, long),) = execute(BOTH_WAYS, f"of {'A' * letters}", f"òf {'A' * letters}")

    assert short == long == f"of {'a' * min(letters, 100)}"


@pytest.mark.parametrize(
    ("title", "genres", "found_by"),
    [
        ("Face/Off", ["Action", "sci fi"], [" Action", " sci fi", "face", "off"]),
        ("  S.W.A.T. ", ["b", "a"], [" a", " b", "a", "s", "t", "w"]),
        ("***", ["g" * 101], [" " + "g" * 100]),
        ("Ten 10 ten", ["1", "2", "3", "4", "5"], [" 1", " 2", " 3", " 4", " 5", "10", "ten"]),
    ],
)
def test_words_and_genres_are_told_apart(
    execute: Execute, title: str, genres: list[str], found_by: list[str]
) -> None:
    """Every genre starts with a space."""
    ((words,),) = execute("select tsvector_to_array(movie_search(%s, %s))", title, genres)

    assert sorted(words) == sorted(found_by)


def test_movies_of_earlier_versions_are_found(empty_database: str, tmp_path: Path) -> None:
    """The migration keeps genres, words and version, and so does taking it back."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    files = sorted((ROOT / "migrations").glob("*.sql"))
    *before, migration = [file for file in files if file.name < "20261120130001"]
    for file in before:
        shutil.copy(file, folder)
    migrations.upgrade(empty_database, folder, lambda _: None)
    shutil.copy(migration, folder)  # the newest one there, so a downgrade takes it back
    find = (
        "select title, version from movies where search @@ title_query('οδυσσεας')"
        " and search @@ genres_query('{drama}')"
    )
    with closing(psycopg2.connect(empty_database)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(
            "insert into movies (title, year, runtime, genres)"
            " values ('Οδυσσέας', 1997, 176, '{drama}'), ('Moana', 2016, 107, '{drama}')"
        )
        found = []
        for move in (migrations.upgrade, migrations.downgrade, migrations.upgrade):
            move(empty_database, folder, lambda _: None)
            cursor.execute(find)
            found.append(cursor.fetchall())

    assert found == [[("Οδυσσέας", 1)]] * 3
