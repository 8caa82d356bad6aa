"""Tests the rules that PostgreSQL enforces: constraints, version and updated_at.

The tests use plain SQL, as a DBA would write it in psql.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from movie_examples import BROKEN, ONE, OTHER
from support import Execute, hold

from service.errors import Invalid, Malformed
from service.movies import rules
from service.web import fields
from service.web.fields import load_fields

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


@pytest.mark.parametrize(("rule", "fields"), BROKEN)
def test_a_broken_rule_is_refused_by_its_name(
    execute: Execute, rule: str, fields: dict[str, Any]
) -> None:
    """A row that breaks one rule is refused, and the error names that rule; so does the service."""
    with pytest.raises(psycopg2.errors.CheckViolation) as caught:
        insert(execute, **fields)

    assert caught.value.diag.constraint_name == rule
    for name, value in fields.items():
        sent = f"{value} mins" if name == "runtime" else value
        with pytest.raises((Malformed, Invalid)):  # a client sends no version
            load_fields(rules.MOVIE, ONE | {name: sent})


def test_every_rule_holds_for_the_movies_of_earlier_releases(execute: Execute) -> None:
    """A rule that was added as `not valid` was validated later."""
    assert execute("select conname from pg_constraint where not convalidated") == []


def test_every_rule_is_tried(execute: Execute) -> None:
    """Every constraint has an example in tests/movie_examples.py."""
    rows = execute(
        "select conname from pg_constraint where conrelid = 'movies'::regclass and contype = 'c'"
    )

    assert {name for (name,) in rows} == {rule for rule, _ in BROKEN}


Make = Callable[[int], dict[str, Any]]
LIMITS: list[tuple[str, str, Make]] = [
    ("MIN_YEAR", "movies_year_1888_or_later", lambda year: {"year": year}),
    ("MAX_TITLE_BYTES", "movies_title_at_most_500_bytes", lambda size: {"title": size * "x"}),
    ("MAX_GENRES", "movies_genres_one_to_five", lambda n: {"genres": [*map(str, range(n))]}),
    ("MAX_GENRE_BYTES", "movies_genres_at_most_100_bytes", lambda n: {"genres": [n * "x"]}),
    (
        "MAX_EXTERNAL_ID_BYTES",
        "movies_external_id_at_most_255_bytes",
        lambda size: {"external_id": size * "x"},
    ),
    ("MAX_INTEGER", "the type of the column runtime", lambda time: {"runtime": time}),
]


@pytest.mark.parametrize(("constant", "place", "make_fields"), LIMITS)
def test_the_service_and_the_database_have_the_same_limits(
    execute: Execute, constant: str, place: str, make_fields: Make
) -> None:
    """Who changes a limit in one place learns which other places to change."""
    limit = getattr(rules, constant)
    beyond = limit - 1 if constant.startswith("MIN") else limit + 1
    remedy = (
        f"{constant} in service/movies/rules.py is {limit}, but {place} in the migrated database"
        " has another limit. Correct the constant, or write a migration that changes the database."
        " Then correct the table of fields in docs/clients/contract.md."
    )

    assert is_accepted(execute, make_fields(limit)), remedy
    assert not is_accepted(execute, make_fields(beyond)), remedy


def test_the_service_and_the_database_find_the_same_texts_blank(execute: Execute) -> None:
    """Each character alone."""
    characters = [chr(n) for n in (*range(1, 0xD800), *range(0xE000, 0x110000))]

    rows = execute("select c from unnest(%s) as c where not is_visible(c)", characters)

    blank = {character for (character,) in rows}
    assert blank == {character for character in characters if not fields.BLANKS.sub("", character)}
    assert {each for each in characters if each.isspace()} < blank
    assert {*"\u00ad\u034f\u061c\u115f\u17b4\u180e\u200b\u200d\u202e\u2060\u2800"} < blank
    assert {*"\u3164\ufe0f\ufeff\uffa0\U000e0041\U000e01ef"} < blank


def is_accepted(execute: Execute, fields: dict[str, Any]) -> bool:
    """Whether the database takes a movie with these fields."""
    try:
        insert(execute, **fields)
    except (psycopg2.errors.CheckViolation, psycopg2.errors.NumericValueOutOfRange):
        return False
    return True


@pytest.mark.parametrize("column", [*MOVIE, "version", "created_at", "updated_at"])
def test_no_column_may_be_null(execute: Execute, column: str) -> None:
    """Of those that every movie has; optional fields are not in `MOVIE`."""
    with pytest.raises(psycopg2.errors.NotNullViolation) as caught:
        insert(execute, **{column: None})

    assert caught.value.diag.column_name == column


CHANGES = [
    *load_fields(rules.MOVIE, OTHER).items(),
    ("title", "Moana "),
    ("genres", ["adventure", "animation"]),
    ("created_at", YESTERDAY),
]


@pytest.mark.parametrize(("column", "value"), CHANGES)
def test_a_change_raises_version_and_updated_at(execute: Execute, column: str, value: Any) -> None:
    """Any change raises the version by one and sets updated_at to now, whatever else is set."""
    insert(execute, version=7, updated_at=YESTERDAY)

    execute(f"update movies set {column} = %s, version = 1, updated_at = '1999-01-01'", value)

    ((version, updated_at),) = execute("select version, updated_at from movies")
    assert version == 8
    assert datetime.now(UTC) - updated_at < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("column", "value"), [("director text", "'Ron Clements'"), ("extra json", "'{\"a\": 1}'")]
)
def test_a_change_of_a_dbas_own_column_counts(execute: Execute, column: str, value: str) -> None:
    """Also of a type that PostgreSQL cannot compare; the same value again does not count."""
    execute(f"alter table movies add column {column}")
    movie_id = insert(execute, version=7)
    update = f"update movies set {column.partition(' ')[0]} = {value}"

    versions = [(execute(update), stamps(execute, movie_id)[0])[1] for _ in range(2)]

    assert versions == [8, 8]
    ((is_found,),) = execute("select search @@ title_query('moana') from movies")
    assert is_found


def test_every_column_is_changed_above(execute: Execute) -> None:
    """Except those that PostgreSQL or the trigger sets: a new column counts as a change, too."""
    rows = execute(
        "select attname from pg_attribute where attrelid = 'movies'::regclass"
        " and attnum > 0 and not attisdropped and attgenerated = ''"
    )

    changed = {name for (name,) in rows} - {"id", "version", "updated_at"}
    assert changed == {name for name, _ in CHANGES}


@pytest.mark.parametrize("value", ["default", "id + 9000"])
def test_an_id_never_changes(execute: Execute, value: str) -> None:
    """Clients and the feed would not learn that the movie has another id now."""
    movie_id = insert(execute)
    execute("alter table movies alter id set generated by default")

    with pytest.raises(psycopg2.errors.GeneratedAlways, match=f"the id of movie {movie_id} cannot"):
        execute(f"update movies set id = {value}")


@pytest.mark.parametrize("name", ["normalize", "zz_normalize"])
def test_a_change_by_a_trigger_raises_the_version(execute: Execute, name: str) -> None:
    """The trigger of the version is the last one."""
    movie_id = insert(execute, version=7)
    execute(
        "create function shout() returns trigger language plpgsql as"
        " $$ begin new.title := upper(new.title); return new; end $$;"
        f"create trigger {name} before update on movies"
        " for each row execute function shout()"
    )

    execute("update movies set title = title")

    assert execute("select title from movies") == [("MOANA",)]
    assert stamps(execute, movie_id)[0] == 8


@pytest.mark.parametrize(
    "assignment",
    [
        "title = title, year = year, runtime = runtime, genres = genres",
        "version = 99",
        "version = null",
        "updated_at = now()",
        "version = 0, updated_at = 'infinity'",
    ],
)
def test_nothing_changed_leaves_all_as_it_is(execute: Execute, assignment: str) -> None:
    """Setting version or updated_at without a change of the movie does nothing."""
    movie_id = insert(execute, version=7, updated_at=YESTERDAY)
    before = stamps(execute, movie_id)

    execute(f"update movies set {assignment} where id = %s", movie_id)

    assert stamps(execute, movie_id) == before


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
    """A change in a transaction that began before another one's counts from that one's version."""
    movie_id = insert(execute)
    with hold(database, "select now()") as second:
        execute("update movies set year = 2017")
        between = stamps(execute, movie_id)
        second.cursor().execute("update movies set year = 2018")
        second.commit()

    assert stamps(execute, movie_id) == (3, between[1])
