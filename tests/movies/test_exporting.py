"""Tests the export: movies as in responses, by id, from one snapshot."""

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from import_file import import_file
from support import Execute, Patch, add_movies, set_for_database

from service.app import EXPECTED
from service.database import query_files
from service.database.transactions import Transaction
from service.errors import OperatorError
from service.movies import exporting, formats
from service.movies.exporting import read_chunks
from service.movies.movie import COLUMNS, OUTPUT_FORMS, Movie

# Titles and genres that CSV or JSON could misread.
ODD = [
    *('a"b', "a,b", "a|b", " a ", "[", '["a"]', "\\N", "a\rb", "a\nb", "a\tb"),
    *("\ufeff-", "é🎬", "-"),
]


@pytest.fixture
def empty_catalogue(new_database: Callable[[str], str], template: str) -> str:
    """Return the URL of another database without movies."""
    return new_database(template)


def export_movies(url: str, path: str, kind: str) -> int:
    """Export with the queries of this checkout."""
    return exporting.export_movies(url, query_files.load(ROOT / "queries", EXPECTED), path, kind)


def fill(execute: Execute) -> None:
    """Insert odd, changed and deleted movies."""
    for odd in ODD:
        for genres in ([odd], [odd, "drama"], ["drama", odd, "a; b"]):
            execute(
                "insert into movies (title, year, runtime, genres) values (%s, 1999, 90, %s)",
                odd,
                genres,
            )
    execute("delete from movies where id % 7 = 0")
    execute("update movies set year = 2000 where id % 3 = 0")


Export = Callable[[str], Path]


@pytest.fixture
def export(database: str, tmp_path: Path) -> Export:
    """Export the test's database to a file of this name; its extension gives the format."""

    def run(name: str) -> Path:
        kind = formats.detect_format(name, None, OUTPUT_FORMS)
        export_movies(database, str(tmp_path / name), kind)
        return tmp_path / name

    return run


def test_times_are_in_utc(export: Export, execute: Execute) -> None:
    """Whatever the time zone of the database is. Only a DBA can create ids below one."""
    set_for_database(execute, "timezone = 'Asia/Kolkata'")
    execute(
        "insert into movies (id, title, year, runtime, genres, created_at) overriding system value"
        " select id, 'a', 1999, 90, '{a}', '2001-02-03T04:05:06.5Z' from unnest(%s) as id",
        [1, 0, -1],
    )

    movies = [json.loads(line) for line in export("a.ndjson").read_text().splitlines()]
    assert [movie["id"] for movie in movies] == [-1, 0, 1]
    assert {movie["created_at"] for movie in movies} == {"2001-02-03T04:05:06.500000Z"}


@pytest.mark.parametrize("name", ["a.ndjson", "a.json", "a.csv", "a.ndjson.gz", "a.csv.gz"])
def test_what_was_exported_is_imported_byte_for_byte(
    database: str, empty_catalogue: str, execute: Execute, tmp_path: Path, name: str
) -> None:
    """An export of the imported file is the same file."""
    fill(execute)
    before, after = tmp_path / name, tmp_path / f"again-{name}"
    kind = formats.detect_format(name, None, OUTPUT_FORMS)
    exported = export_movies(database, str(before), kind)
    result = import_file(empty_catalogue, before, tmp_path / "rejects")
    export_movies(empty_catalogue, str(after), kind)

    assert (result.created, result.rejected) == (exported, 0)
    assert before.read_bytes() == after.read_bytes()


@pytest.mark.parametrize(
    ("name", "empty"),
    [("a.ndjson", ""), ("a.json", "[\n\n]\n"), ("a.csv", ",".join(COLUMNS) + "\n")],
)
def test_an_empty_catalogue(
    export: Export, database: str, tmp_path: Path, name: str, empty: str
) -> None:
    """The file has no movies, and can be imported."""
    path = export(name)

    assert path.read_text() == empty
    assert import_file(database, path, tmp_path / "rejects").read == 0


def test_a_csv_is_for_people_and_other_programs(export: Export, execute: Execute) -> None:
    """Bars separate genres, unless one could be misread; Python's csv module reads all titles."""
    add_movies(execute, "a")
    fill(execute)
    path = export("a.csv")

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert path.read_text().splitlines()[1].startswith("1,a,2000,1 mins,x,")
    assert {row["genres"] for row in rows} >= {"é🎬|drama", 'drama|a"b|a; b', '["a,b"]'}
    titles = execute("select title from movies order by id")
    assert [row["title"] for row in rows] == [title for (title,) in titles]


def test_an_export_shows_one_moment(export: Export, execute: Execute, monkeypatch: Patch) -> None:
    """What others add while it is written comes with the next export."""
    monkeypatch.setattr(exporting, "CHUNK_ROWS", 1)
    add_movies(execute, *"ab")

    def read_and_add(transaction: Transaction) -> Iterator[list[Movie]]:
        chunks = read_chunks(transaction)
        yield next(chunks)
        add_movies(execute, "c")
        yield from chunks

    monkeypatch.setattr(exporting, "read_chunks", read_and_add)

    lines = export("movies.ndjson").read_text("utf-8").splitlines()

    assert [json.loads(line)["title"] for line in lines] == ["a", "b"]


def test_a_failed_export_keeps_the_earlier_file(
    database: str, execute: Execute, tmp_path: Path
) -> None:
    """A failed export leaves no other file; one line says why."""
    path = tmp_path / "a.csv"
    path.write_text("before")
    execute("alter table movies rename to films")

    with pytest.raises(OperatorError, match=r"is it migrated\?"):
        export_movies(database, str(path), "csv")
    with pytest.raises(OperatorError, match=r"b\.csv: cannot be written: No such file"):
        export_movies(database, str(tmp_path / "missing" / "b.csv"), "csv")

    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.csv", "before")]


def test_a_link_stays_a_link(export: Export, tmp_path: Path) -> None:
    """Its target is replaced."""
    (tmp_path / "link.json").symlink_to(tmp_path / "file")

    assert export("link.json").is_symlink()
    assert (tmp_path / "file").read_text() == "[\n\n]\n"


def test_a_device_is_not_replaced(database: str, execute: Execute) -> None:
    """/dev/null stays a device, and /dev/full is an error of one line."""
    fill(execute)
    export_movies(database, "/dev/null", "json")

    assert Path("/dev/null").is_char_device()
    with pytest.raises(OperatorError, match="/dev/full: cannot be written: No space left"):
        export_movies(database, "/dev/full", "json")


def test_gz_is_gzip(export: Export, execute: Execute) -> None:
    """It unpacks to the plain file, and has the same bytes each time; .GZ is gzip, too."""
    fill(execute)

    packed = export("a.csv.gz").read_bytes()
    assert gzip.decompress(packed) == export("a.csv").read_bytes()
    assert packed == export("b.csv.gz").read_bytes() == export("A.CSV.GZ").read_bytes()
    assert packed[4:8] == bytes(4)  # its time, in RFC 1952


def test_a_time_that_python_cannot_hold_is_one_line(export: Export, execute: Execute) -> None:
    """Only a DBA can store it."""
    add_movies(execute, "a")
    execute("update movies set created_at = '20000-01-01T00:00:00Z'")

    with pytest.raises(OperatorError, match=r"a movie cannot be read: .*year 20000"):
        export("a.csv")
