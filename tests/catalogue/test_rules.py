"""Tests the rules that PostgreSQL enforces: constraints, version and updated_at.

The tests use plain SQL, as a DBA would write it in psql.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from support import Execute

MOVIE: dict[str, Any] = {
    "title": "Moana",
    "year": 2016,
    "runtime": 107,
    "genres": ["animation", "adventure"],
}
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def insert(execute: Execute, **fields: Any) -> int:
    """Insert `MOVIE` with these fields changed, and return its id."""
    movie = MOVIE | fields
    columns, marks = ", ".join(movie), ", ".join(["%s"] * len(movie))
    sql = f"insert into movies ({columns}) values ({marks}) returning id"
    ((movie_id,),) = execute(sql, *movie.values())
    return int(movie_id)


def stamps(execute: Execute, movie_id: int) -> tuple[int, datetime]:
    """Read version and updated_at."""
    ((version, updated_at),) = execute(
        "select version, updated_at from movies where id = %s", movie_id
    )
    return version, updated_at


BROKEN = [
    ("movies_title_not_blank", {"title": ""}),
    ("movies_title_not_blank", {"title": " \t\n"}),
    ("movies_title_at_most_500_bytes", {"title": "x" * 501}),
    ("movies_title_at_most_500_bytes", {"title": "é" * 250 + "x"}),
    ("movies_year_1888_or_later", {"year": 1887}),
    ("movies_runtime_positive", {"runtime": 0}),
    ("movies_runtime_positive", {"runtime": -1}),
    ("movies_genres_one_to_five", {"genres": []}),
    ("movies_genres_one_to_five", {"genres": ["a", "b", "c", "d", "e", "f"]}),
    ("movies_genres_one_to_five", {"genres": [["a", "b"], ["c", "d"]]}),
    ("movies_genres_one_to_five", {"genres": "[0:0]={a}"}),  # SQL's arrays may begin anywhere
    ("movies_genres_no_null", {"genres": ["a", None]}),
    ("movies_genres_not_empty", {"genres": ["a", ""]}),
    ("movies_genres_different", {"genres": ["a", "a"]}),
    ("movies_genres_different", {"genres": ["a", "b", "a"]}),
    ("movies_genres_different", {"genres": ["a", "b", "c", "d", "a"]}),
    ("movies_genres_different", {"genres": ["a", "b", "b"]}),
    ("movies_genres_different", {"genres": ["a", "b", "c", "d", "b"]}),
    ("movies_genres_different", {"genres": ["a", "b", "c", "c"]}),
    ("movies_genres_different", {"genres": ["a", "b", "c", "d", "c"]}),
    ("movies_genres_different", {"genres": ["a", "b", "c", "d", "d"]}),
    *(
        ("movies_genres_at_most_100_bytes", {"genres": [*"abcd"[:n], "é" * 50 + "x"]})
        for n in range(5)
    ),
    ("movies_version_positive", {"version": 0}),
]


@pytest.mark.parametrize(("rule", "fields"), BROKEN)
def test_a_broken_rule_is_refused_by_its_name(
    execute: Execute, rule: str, fields: dict[str, Any]
) -> None:
    """A row that breaks one rule is refused, and the error names that rule."""
    with pytest.raises(psycopg2.errors.CheckViolation) as caught:
        insert(execute, **fields)

    assert caught.value.diag.constraint_name == rule


@pytest.mark.parametrize(
    ("rule", "fields"), [pair for pair in BROKEN if pair[0] != "movies_version_positive"]
)
def test_a_change_that_breaks_a_rule_is_refused(
    execute: Execute, rule: str, fields: dict[str, Any]
) -> None:
    """The rules hold for updates as they do for inserts."""
    movie_id = insert(execute)
    ((column, value),) = fields.items()

    with pytest.raises(psycopg2.errors.CheckViolation) as caught:
        execute(f"update movies set {column} = %s where id = %s", value, movie_id)

    assert caught.value.diag.constraint_name == rule


def test_every_rule_is_tried(execute: Execute) -> None:
    """Every constraint has an example above."""
    rows = execute(
        "select conname from pg_constraint where conrelid = 'movies'::regclass and contype = 'c'"
    )

    assert {name for (name,) in rows} == {rule for rule, _ in BROKEN}


@pytest.mark.parametrize(
    "fields",
    [
        {"title": "x"},
        {"title": " x "},
        {"title": "x" * 500},
        {"title": "é" * 250},
        {"title": "🎬" * 125},
        {"year": 1888},
        {"year": 2**31 - 1},
        {"runtime": 1},
        {"runtime": 2**31 - 1},
        {"genres": ["a"]},
        {"genres": ["a", "b", "c", "d", "e"]},
        {"genres": ["a", "A", "a ", "\u00e1", "a\u0301"]},
        {"genres": [letter + "é" * 49 + "x" for letter in "abcde"]},
        {"version": 1},
    ],
    ids=str,
)
def test_the_edges_of_the_rules_are_accepted(execute: Execute, fields: dict[str, Any]) -> None:
    """The limits themselves are accepted and stored unchanged."""
    movie_id = insert(execute, **fields)

    ((column, value),) = fields.items()
    assert execute(f"select {column} from movies where id = %s", movie_id) == [(value,)]


@pytest.mark.parametrize("column", [*MOVIE, "version", "created_at", "updated_at"])
def test_no_column_may_be_null(execute: Execute, column: str) -> None:
    """Every column is not null."""
    with pytest.raises(psycopg2.errors.NotNullViolation) as caught:
        insert(execute, **{column: None})

    assert caught.value.diag.column_name == column


def test_an_id_is_never_given_twice(execute: Execute) -> None:
    """The id of a deleted movie is not used again."""
    first = insert(execute)
    execute("delete from movies where id = %s", first)

    second = insert(execute)

    assert second > first


def test_a_new_movie_begins_at_version_one(execute: Execute) -> None:
    """A new row has version 1, and was updated when it was created."""
    movie_id = insert(execute)

    rows = execute(
        "select version, created_at = updated_at, now() - created_at < '1 minute' from movies"
        " where id = %s",
        movie_id,
    )

    assert rows == [(1, True, True)]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("title", "Vaiana"),
        ("title", "Moana "),
        ("year", 2017),
        ("runtime", 108),
        ("genres", ["adventure", "animation"]),
        ("genres", ["animation"]),
        ("created_at", YESTERDAY),
    ],
)
def test_a_change_raises_version_and_updated_at(execute: Execute, column: str, value: Any) -> None:
    """Any change of a movie raises its version by one and sets updated_at to now."""
    movie_id = insert(execute, version=7, updated_at=YESTERDAY)

    execute(f"update movies set {column} = %s where id = %s", value, movie_id)
    version, updated_at = stamps(execute, movie_id)

    assert version == 8
    assert datetime.now(UTC) - updated_at < timedelta(minutes=1)


def test_another_id_is_a_change(execute: Execute) -> None:
    """A DBA who moves a movie to another id has changed it."""
    movie_id = insert(execute, updated_at=YESTERDAY)

    execute(
        "alter table movies alter id set generated by default;"
        "update movies set id = 9000 where id = %s",
        movie_id,
    )
    version, updated_at = stamps(execute, 9000)

    assert version == 2
    assert updated_at > YESTERDAY


def test_every_column_of_the_table_counts_as_a_change(execute: Execute) -> None:
    """The trigger compares every column, except those that PostgreSQL or the trigger sets."""
    ((source,),) = execute("select prosrc from pg_proc where proname = 'movies_keep_version'")
    rows = execute(
        "select attname from pg_attribute where attrelid = 'movies'::regclass"
        " and attnum > 0 and not attisdropped and attgenerated = ''"
    )

    columns = {name for (name,) in rows} - {"version", "updated_at"}

    assert columns == {name for name in columns if f"new.{name}" in source}
    assert columns == {name for name in columns if f"old.{name}" in source}


def test_nothing_changed_leaves_all_as_it_is(execute: Execute) -> None:
    """An update that changes no value keeps version and updated_at."""
    movie_id = insert(execute, version=7, updated_at=YESTERDAY)
    before = stamps(execute, movie_id)

    execute(
        "update movies set title = title, year = %s, genres = %s where id = %s",
        MOVIE["year"],
        MOVIE["genres"],
        movie_id,
    )

    assert stamps(execute, movie_id) == before


@pytest.mark.parametrize(
    "assignment",
    [
        "version = 99",
        "version = version + 1",
        "version = 0",
        "version = null",
        "updated_at = now()",
        "updated_at = 'infinity'",
        "version = 99, updated_at = '1999-01-01'",
    ],
)
def test_version_and_updated_at_cannot_be_set_by_hand(execute: Execute, assignment: str) -> None:
    """Setting them without a change of the movie does nothing."""
    movie_id = insert(execute, version=7, updated_at=YESTERDAY)
    before = stamps(execute, movie_id)

    execute(f"update movies set {assignment} where id = %s", movie_id)

    assert stamps(execute, movie_id) == before


def test_a_change_overrules_what_is_set_by_hand(execute: Execute) -> None:
    """An update of a movie and its version still gets the next version."""
    movie_id = insert(execute, version=7, updated_at=YESTERDAY)

    execute(
        "update movies set title = 'Vaiana', version = 1, updated_at = '1999-01-01' where id = %s",
        movie_id,
    )
    version, updated_at = stamps(execute, movie_id)

    assert version == 8
    assert updated_at > YESTERDAY


def test_updated_at_never_goes_back(execute: Execute) -> None:
    """A change by a transaction that began before the last change does not turn the time back."""
    ahead = datetime.now(UTC) + timedelta(hours=1)
    movie_id = insert(execute, updated_at=ahead)

    execute("update movies set title = 'Vaiana' where id = %s", movie_id)

    assert stamps(execute, movie_id) == (2, ahead)


def test_each_of_many_rows_counts_for_itself(execute: Execute) -> None:
    """One update over many rows raises the versions of those that it changes, and no other."""
    same = insert(execute, title="Vaiana")
    other = insert(execute)

    execute("update movies set title = 'Vaiana'")

    assert (stamps(execute, same)[0], stamps(execute, other)[0]) == (1, 2)


def test_versions_at_once_are_each_given_once(execute: Execute, database: str) -> None:
    """If two changes run at the same time, the second waits and counts from the first."""
    movie_id = insert(execute)
    first, second = psycopg2.connect(database), psycopg2.connect(database)
    try:
        with second.cursor() as cursor:
            cursor.execute("select now()")  # its transaction begins before the first one's change
        with first.cursor() as cursor:
            cursor.execute("update movies set year = 2017 where id = %s", (movie_id,))
        first.commit()
        between = stamps(execute, movie_id)
        with second.cursor() as cursor:
            cursor.execute("update movies set year = 2018 where id = %s", (movie_id,))
        second.commit()
    finally:
        first.close()
        second.close()

    assert stamps(execute, movie_id) == (3, between[1])
