"""Tests the file formats: rows, their lines, and the reasons for rejects."""

import gzip
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MOANA

from service.catalogue.strict_json import MAX_BYTES
from service.errors import CatalogueError, OperatorError
from service.transfer import formats
from service.transfer.files import open_source
from service.transfer.json_rows import MAX_PIECES, READ_BYTES, read_array
from service.transfer.rows import TOO_LONG, FileRow
from service.transfer.table_rows import split_genres

Read = Callable[..., list[FileRow]]
TEXT = json.dumps(MOANA)
CSV = "title,year,runtime,genres\n"
IMDB = (
    "tconst\ttitleType\tprimaryTitle\toriginalTitle\tisAdult\tstartYear\tendYear\truntimeMinutes"
    "\tgenres\n"
)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a file and read its rows."""

    def all_rows(
        data: str | bytes, kind: str = "ndjson", *, where: Any = (), **columns: str
    ) -> list[FileRow]:
        path = tmp_path / "movies"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        with open_source(str(path)) as source:
            return list(formats.read_rows("movies", source, kind, columns, where))

    return all_rows


def told(rows: list[FileRow]) -> list[tuple[int, Any]]:
    """Return line and movie, or line and mistake."""
    return [
        (r.line, str(r.movie) if isinstance(r.movie, CatalogueError) else r.movie) for r in rows
    ]


def test_a_files_name_gives_the_format() -> None:
    """The extension gives it, with or without .gz; otherwise the option is needed."""
    for path, kind in {
        "movies.ndjson": "ndjson",
        "movies.jsonl.gz": "ndjson",
        "a.b/MOVIES.JSON": "json",
        "movies.csv.gz": "csv",
        "title.basics.tsv": "imdb",
    }.items():
        assert formats.detect_format(path, None, formats.IMPORTED) == kind
    for path in ("-", "movies", "movies.gz", "movies.xlsx"):
        assert formats.detect_format(path, "csv", formats.IMPORTED) == "csv"
        with pytest.raises(OperatorError, match="add --format with one of ndjson, json, csv, imdb"):
            formats.detect_format(path, None, formats.IMPORTED)
    with pytest.raises(
        OperatorError, match=r"^x\.tsv: imdb is for import only: add --format with one of"
    ):
        formats.detect_format("x.tsv", None, formats.EXPORTED)


def test_gzip_is_recognised_by_its_bytes(read: Read) -> None:
    """The name has no effect; gzip may have several parts. A damaged file is refused."""
    packed = gzip.compress(TEXT.encode())
    long = gzip.compress(b"".join(b"%d\n" % n for n in range(100_000)))

    assert told(read(gzip.compress(TEXT.encode() + b"\n") + packed)) == [(1, MOANA), (2, MOANA)]
    with pytest.raises(OperatorError, match="movies: the gzip data is incomplete or damaged"):
        read(long[: len(long) // 2])
    with pytest.raises(OperatorError, match="incomplete or damaged: crc check failed"):
        read(packed[:-8] + b"\0\0\0\0" + packed[-4:])


def test_ndjson_is_a_movie_a_line(read: Read) -> None:
    """Blank lines are counted, but are not rows; the last line needs no line end."""
    assert told(read(f"{TEXT}\r\n\n \n{TEXT}")) == [(1, MOANA), (4, MOANA)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "the row is not one JSON object: expecting property name enclosed in double quotes"),
        (b"[]", "the row must be one JSON object"),
        (b'{"title": 1, "title": 2}', 'the field "title" is repeated'),
        (b'{"year": NaN}', "the row is not JSON: NaN is not a JSON number"),
        (b'{"title": "\xff"}', "the row is not UTF-8 at byte 11"),
        (b"[" * 100_000, "the row is nested too deep"),
        (b'{"year": %b}' % (b"9" * 5000), "the row has a number that is too big"),
        (b"\xef\xbb\xbf{}", "the row starts with a byte order mark"),
        (b"\0", "the row is not one JSON object"),
        (b"x" * (MAX_BYTES + 1), f"the row must be at most {MAX_BYTES} bytes"),
    ],
    ids=range(10),
)
def test_an_invalid_line_rejects_only_itself(read: Read, line: bytes, problem: str) -> None:
    """The reject has its line number; the rules are those of a request body."""
    first, second = told(read(line + b"\n" + TEXT.encode()))

    assert first[0] == 1
    assert first[1].startswith(problem)
    assert second == (2, MOANA)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"[{TEXT}]", [1]),
        (f"\n [\n{TEXT}\n,\n{TEXT}\n]\n \n", [3, 5]),
        (f"[{TEXT},\r\n{TEXT}]", [1, 2]),
        ("[]", []),
        (" [ \n ] ", []),
    ],
)
def test_a_json_array_is_cut_into_movies(read: Read, text: str, lines: list[int]) -> None:
    """Each movie has the line on which it starts."""
    assert told(read(text, "json")) == [(line, MOANA) for line in lines]


@pytest.mark.parametrize("title", ['"],', "\\", '\\"', "{[", "}", "]", "\\\\", "a\nb", "é"])
def test_brackets_and_quotes_in_strings_are_text(read: Read, title: str) -> None:
    """Quotes, backslashes and brackets in a title are only text."""
    movie = MOANA | {"title": title}
    text = json.dumps([movie, movie])

    assert told(read(text, "json")) == [(1, movie), (1, movie)]


def test_an_array_is_cut_the_same_wherever_reading_stops() -> None:
    """Movies across the limit of two reads are complete."""
    movie = MOANA | {"title": 'a "\\" [é]'}
    text = json.dumps([movie] * 40).encode()

    class Few(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 7) if size != -1 else 7)

    assert [row.movie for row in read_array(Few(text))] == [movie] * 40


@pytest.mark.parametrize(
    ("element", "problem"),
    [
        ('{"a": 1, "a": 2}', 'the field "a" is repeated'),
        (
            '{"a": ' + 10_000 * "[" + 10_000 * "]" + "}",
            (
                "the row is nested too deep or has too many values: expected at most 2000 colons"
                " and brackets and 20000 commas"
            ),
        ),
    ],
    ids=["repeated", "deep"],
)
def test_an_invalid_element_rejects_only_itself(read: Read, element: str, problem: str) -> None:
    """It is rejected with its line, and the next element is read."""
    assert told(read(f"[{element},\n{TEXT}]", "json")) == [(1, problem), (2, MOANA)]


@pytest.mark.parametrize("title", [r"\ud800", r"\ud800x", r"\u0000", r"\ud83c\udfac", r"\\ud800"])
def test_escapes_are_read_as_in_ndjson(read: Read, title: str) -> None:
    """A lone surrogate is not lost: ijson alone would make "?" of a lone surrogate."""
    text = f'{{"title": "{title}"}}'

    assert told(read(f"[{text}]", "json")) == told(read(text)) == [(1, json.loads(text))]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "parse error: premature EOF"),
        (" \n", 2, "parse error: premature EOF"),
        (f"\n{TEXT}", 2, "it must contain objects only"),
        ("7", 1, "it must contain objects only"),
        (f"[{TEXT},\n7,{TEXT}]", 2, "it must contain"),
        (f"[{TEXT},\n[{TEXT}]]", 2, "it must contain"),
        (f"[{TEXT},\n[[{TEXT}]", 2, "parse error: prem"),
        (f"[{TEXT},\n\n{TEXT}", 3, "parse error: premature"),
        (f"[{TEXT}]\n[{TEXT}]", 2, "parse error: trailing"),
        (f"[{TEXT}\n{TEXT}]", 2, "parse error: after"),
        (f"[{TEXT},\n]", 2, "parse error: unallowed"),
        (f"[\n,{TEXT}]", 2, "parse error: unallowed"),
        ('[{"a" 1}]', 1, "parse error: object key and"),
        ('[{"year": NaN}]', 1, "lexical error: invalid"),
        ('[{"a": 01}]', 1, "parse error: after key"),
        ('[{"a": %s}]' % (5000 * "9"), 1, "parse error: in"),
        (r'[{"a": "\udc00"}]', 1, "'utf-8' codec can't"),
        (b'[{"a": "\xff"}]', 1, "lexical error: invalid by"),
        (b"\xef\xbb\xbf[]", 1, "lexical error: invalid"),
        (
            '[\n{"title": "x' + "y" * 2 * MAX_BYTES,
            2,
            f"{TOO_LONG} and 5000 braces; is a closing",
        ),
        (
            "[\n" + "[" * 2 * MAX_BYTES,
            2,
            f"{TOO_LONG} and 5000 braces; is a closing quote or bracket missing?",
        ),
        ('[\n{"a": "' + "}" * 2 * MAX_BYTES, 2, f"{TOO_LONG} and 5000 braces; is a closing"),
    ],
    ids=range(22),
)
def test_an_invalid_array_stops_the_import(
    read: Read, text: str | bytes, line: int, problem: str
) -> None:
    """The error has line and reason."""
    with pytest.raises(OperatorError) as caught:
        read(text, "json")

    expected = "" if problem.startswith(TOO_LONG) else "expected a JSON array of movies: "
    assert str(caught.value).startswith(f"movies:{line}: {expected}{problem}")
    assert "\n" not in str(caught.value)


def test_an_array_is_not_read_ahead() -> None:
    """The first movie is returned before the rest is read."""
    stream = io.BytesIO(b"[" + TEXT.encode() + b"," + b" " * 4 * READ_BYTES + b"]")

    next(read_array(stream))

    assert stream.tell() <= READ_BYTES


def test_an_array_may_have_any_number_of_movies() -> None:
    """Limits apply to each movie."""
    array = b"[" + b",".join([b"{}"] * (MAX_PIECES + 1)) + b"]"

    assert len(list(read_array(io.BytesIO(array)))) == MAX_PIECES + 1


def test_a_csv_in_its_usual_forms(read: Read) -> None:
    """Three forms of runtimes, genres with commas or bars, quotes, a byte order mark, CRLF."""
    data = (
        "\ufeffid_of_it,title,year,runtime,genres\r\n"
        'x,"A ""B"", C",1999,102 mins,drama| war \r\n'
        "\r\n"
        'y,"two\nlines", 2001 ,102 min,"drama, war"\r\n'
        "z,Ä,2001,102,drama"
    )

    assert told(read(data, "csv")) == [
        (2, {"title": 'A "B", C', "year": 1999, "runtime": "102 mins", "genres": ["drama", "war"]}),
        (
            4,
            {
                "title": "two\nlines",
                "year": 2001,
                "runtime": "102 mins",
                "genres": ["drama", "war"],
            },
        ),
        (6, {"title": "Ä", "year": 2001, "runtime": "102 mins", "genres": ["drama"]}),
    ]


def test_columns_of_other_names_and_only_some_rows(read: Read) -> None:
    """--map names columns, --where selects rows; an empty cell has no value."""
    data = "type,name,release_year,length,tags\nMovie,Moana,2016,,a\nShow,Lost,2004,6 Seasons,b\n"

    rows = read(
        data,
        "csv",
        where=[("type", "Movie")],
        title="name",
        year="release_year",
        runtime="length",
        genres="tags",
    )

    assert told(rows) == [(2, {"title": "Moana", "year": 2016, "genres": ["a"]}), (3, None)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("a,MCM,1,b", '"year" must be a whole number, found "MCM"'),
        ("a,2001.0,1,b", '"year" must be a whole number, found "2001.0"'),
        ("a,\u0661\u0669\u0669\u0669,1,b", '"year" must be a whole number, found'),
        ("a,2001,2 Seasons,b", '"runtime" must be like "102 mins", "102 min" or "102", found'),
        ("a,2001,1", "the row has 3 cells, the header 4"),
        ("a,2001,1,b,c", "the row has 5 cells, the header 4"),
        ('"a"b,2001,1,b', "the row is not CSV: ',' expected after '\"'"),
        ("a\rb,2001,1,b", "the row is not CSV: new-line character seen in unquoted field"),
        ('a,2001,1,"[1"', '"genres" starts with [ but is not a JSON array of strings'),
        ('a,2001,1,"[""b""], ""x"": []"', '"genres" starts with [ but is not a JSON array'),
        (b"\xff,2001,1,b", "line 2 is not UTF-8 at byte 0"),
        (b'"a\n\xff",2001,1,b', "line 3 is not UTF-8 at byte 0"),
    ],
    ids=range(12),
)
def test_an_invalid_csv_row_rejects_only_itself(read: Read, row: str | bytes, problem: str) -> None:
    """The reject has its line, and the next row is read."""
    data = row if isinstance(row, bytes) else row.encode()

    first, second = told(read(CSV.encode() + data + b"\nb,2001,1,c\n", "csv"))

    assert first[0] == 2
    assert first[1].startswith(problem)
    assert second[1] == {"title": "b", "year": 2001, "runtime": "1 mins", "genres": ["c"]}


def test_a_long_cell_is_one(read: Read) -> None:
    """A cell may be as long as a request body, with any content."""
    plot = "b,2001,1,c,d\n" * 80_000

    (row,) = read(f'title,year,runtime,genres,plot\na,2001,1,b,"{plot}"\n', "csv")

    assert row.movie == {"title": "a", "year": 2001, "runtime": "1 mins", "genres": ["b"]}
    assert row.given["plot"] == plot


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            "x" * (MAX_BYTES + 1),
            f"the row must be at most {MAX_BYTES} bytes; is a closing quote missing?",
        ),
        (
            '"a' + "\nb,2001,1,c" * (MAX_BYTES // 8),
            f"the row must be at most {MAX_BYTES} bytes; is a",
        ),
        ('"a,2001,1,b', "the row is not CSV: unexpected end of data; a closing quote is missing"),
        (
            'x","a,2001,1,b',
            "the row is not CSV: unexpected end of data; a closing quote is missing",
        ),
        ('"a "b" c\nd",2001,1,b', "the row is not CSV: ',' expected after '\"'; a closing quote"),
        ('a\rb,"c\nd",1,b', "the row is not CSV: new-line character seen in unquoted field"),
    ],
    ids=range(6),
)
def test_an_unterminated_csv_row_stops_the_import(read: Read, row: str, problem: str) -> None:
    """Text in its quotes is never read as rows."""
    with pytest.raises(OperatorError) as caught:
        read(f"{CSV}a,2001,1,b\n{row}\nb,2001,1,c\n", "csv")

    assert str(caught.value).startswith(f"movies:3: {problem}")


@pytest.mark.parametrize(
    ("data", "columns", "problem"),
    [
        ("", {}, "movies:1: the file is empty; expected a header"),
        (b"\xff\xfet\0", {}, "movies:1: the header cannot be read: line 1 is not UTF-8"),
        ("name,year\n", {}, 'movies:1: there is no column "title" among "name", "year"'),
        (CSV, {"year": "jahr"}, 'movies:1: there is no column "jahr" among "title"'),
        (CSV, {"id": "nr"}, 'movies:1: there is no column "nr" among "title"'),
        ("year," + CSV, {}, 'movies:1: there is more than one column "year" among'),
        ("id," + CSV, {}, 'movies:1: there is a column "id", but none for version, created_at'),
        (TEXT, {}, "movies:1: "),
    ],
)
def test_a_header_that_does_not_fit_stops_the_import(
    read: Read, data: str | bytes, columns: dict[str, str], problem: str
) -> None:
    """The error lists the columns."""
    with pytest.raises(OperatorError) as caught:
        read(data, "csv", **columns)

    assert str(caught.value).startswith(problem)


def test_a_foreign_id_can_be_left_out(read: Read) -> None:
    """`--map id=` ignores the column id."""
    (row,) = read("id,title,year,runtime,genres\ntt1,a,2001,1,b\n", "csv", id="")

    assert row.movie == {"title": "a", "year": 2001, "runtime": "1 mins", "genres": ["b"]}


def test_genres_in_one_cell() -> None:
    """Bars separate genres, or else commas; JSON is exact."""
    for text, genres in {
        "drama": ["drama"],
        "drama,war": ["drama", "war"],
        " drama | war ": ["drama", "war"],
        "rock, pop|war": ["rock, pop", "war"],
        '["a, b"]': ["a, b"],
        "a,,b": ["a", "", "b"],
    }.items():
        assert split_genres(text) == genres


def test_imdb_titles(read: Read) -> None:
    r"""Only movies are read, \N is no value, and quotes are text."""
    data = (
        IMDB
        + 'tt1\tmovie\t"Quoted" title\tx\t0\t1999\t\\N\t102\tDrama,War\n'
        + "tt2\tshort\tShort\tx\t0\t1999\t\\N\t1\tShort\n"
        + "tt3\tmovie\tNothing known\tx\t0\t\\N\t\\N\t\\N\t\\N\n"
        + "tt4\tmovie\n"
    )

    rows = read(data.encode() + b"tt5\t\xff\n", "imdb")

    assert told(rows) == [
        (
            2,
            {
                "title": '"Quoted" title',
                "year": 1999,
                "runtime": "102 mins",
                "genres": ["Drama", "War"],
            },
        ),
        (3, None),
        (4, {"title": "Nothing known"}),
        (5, "the row has 2 cells, the header 9"),
        (6, "the row is not UTF-8 at byte 4"),
    ]


def test_a_long_line_of_imdb_rejects_only_itself(read: Read) -> None:
    """This is as in the other formats."""
    rows = told(read(IMDB + "x" * (MAX_BYTES + 1) + "\ntt1\n", "imdb"))

    assert [line for line, _ in rows] == [2, 3]
    assert rows[0][1] == f"the row must be at most {MAX_BYTES} bytes"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing", "cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory"),
        ("nul\0", "cannot be read: embedded null byte"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, problem: str) -> None:
    """One line says why."""
    with pytest.raises(OperatorError, match=problem), open_source(str(tmp_path / name)):
        pass


def test_waiting_for_the_first_bytes_can_be_interrupted() -> None:
    """The message says that nothing was imported."""
    read_end, write_end = os.pipe()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with (
            pytest.raises(OperatorError, match="interrupted: nothing was imported"),
            open_source(f"/dev/fd/{read_end}"),
        ):
            pass
    finally:
        signal.signal(signal.SIGALRM, before)
        os.close(read_end)
        os.close(write_end)
