"""Tests the file formats: rows, their lines, and the reasons for rejects."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MOANA

from service.errors import CatalogueError, OperatorError
from service.movies import formats
from service.movies.formats import READ_BYTES, read_array
from service.movies.movie import OUTPUT_FORMS, split_genres
from service.movies.rows import TOO_LONG, FileRow, open_source
from service.web.bodies import MAX_BODY_BYTES

Read = Callable[..., list[FileRow]]
TEXT = json.dumps(MOANA)
CSV = "title,year,runtime,genres\n"
LONE_CR = "CR without LF: end lines with LF or CR LF, and quote cells with CR"
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
        with open_source(str(path)) as stream:
            return list(formats.read_rows("movies", stream, kind, columns, where))

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
        formats.detect_format("x.tsv", None, OUTPUT_FORMS)


def test_gzip_is_recognised_by_its_bytes(read: Read) -> None:
    """The name has no effect; gzip may have several parts. A damaged file is refused."""
    packed = gzip.compress(TEXT.encode())
    long = gzip.compress(b"".join(b"%d\n" % n for n in range(100_000)))

    assert told(read(gzip.compress(TEXT.encode() + b"\n") + packed)) == [(1, MOANA), (2, MOANA)]
    with pytest.raises(OperatorError, match="movies: cannot be read: Compressed file ended before"):
        read(long[: len(long) // 2])
    with pytest.raises(OperatorError, match="movies: cannot be read: CRC check failed"):
        read(packed[:-8] + b"\0\0\0\0" + packed[-4:])


def test_ndjson_is_a_movie_a_line(read: Read) -> None:
    """Blank lines are counted, but are not rows; the last line needs no line end."""
    assert told(read(f"{TEXT}\r\n\n \n{TEXT}")) == [(1, MOANA), (4, MOANA)]


FILES = {"ndjson": b"%b\n%b", "json": b"[%b,\n%b]", "csv": CSV.encode() + b"%b\n%b\n"}
INVALID_ROWS = [
    ("ndjson", b"{", "the row is not one JSON object: expecting property name enclosed in"),
    ("ndjson", b'{"title": "\xff"}', "the row is not UTF-8 at byte 11"),
    ("ndjson", b"[" * 100_000, "the row is nested too deep"),
    ("json", b'{"a": 1, "a": 2}', 'the field "a" is repeated'),
    ("json", b'{"a": %b}' % (5000 * b"9"), "the row has a number that is too big"),
    ("csv", b"a,MCM,1,b", '"year" must be a whole number, found "MCM"'),
    ("csv", "a,\u0661\u0669\u0669\u0669,1,b".encode(), '"year" must be a whole number, found'),
    ("csv", b"a,2001,2 Seasons,b", '"runtime" must be like "102 mins", "102 min" or "102", found'),
    ("csv", b"a,2001,1", "the row has 3 cells, the header 4"),
    ("csv", b"a,2001,1,b,c", "the row has 5 cells, the header 4"),
    ("csv", b'a,2001,1,"[1"', '"genres" starts with [ but is not a JSON array of strings'),
    ("csv", b'a,2001,1,"[""b""], ""x"": []"', '"genres" starts with [ but is not a JSON array'),
    ("csv", b"\xff,2001,1,b", "the row is not UTF-8"),
    ("csv", b'"a\n\xff",2001,1,b', "the row is not UTF-8"),
]


@pytest.mark.parametrize(("kind", "row", "problem"), INVALID_ROWS, ids=range(len(INVALID_ROWS)))
def test_an_invalid_row_rejects_only_itself(
    read: Read, kind: str, row: bytes, problem: str
) -> None:
    """The reject has its line, and the next row is read; JSON has the rules of a request body."""
    good = b"Moana,2016,107,animation" if kind == "csv" else TEXT.encode()

    (line, reason), following = told(read(FILES[kind] % (row, good), kind))

    assert reason.startswith(problem)
    assert line == (2 if kind == "csv" else 1)
    assert following == (line + row.count(b"\n") + 1, MOANA)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"[{TEXT}]", [1]),
        (f"\n [\n{TEXT}\n,\n{TEXT}\n]\n \n", [3, 5]),
        (f"[{TEXT},\r\n{TEXT}]", [1, 2]),
        ("[]", []),
    ],
)
def test_a_json_array_is_cut_into_movies(read: Read, text: str, lines: list[int]) -> None:
    """Each movie has the line on which it starts."""
    assert told(read(text, "json")) == [(line, MOANA) for line in lines]


@pytest.mark.parametrize("size", [1, 7])
def test_an_array_is_cut_the_same_wherever_reading_stops(size: int) -> None:
    """Movies across the limit of two reads are complete; signs in a string are only text."""
    movies = [MOANA | {"title": title} for title in ("a", '"],', "\\", '\\"', "{[", "}", "é🎬")]
    text = json.dumps(movies, ensure_ascii=False).encode()

    class Few(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            return super().read(size)

    assert [row.movie for row in read_array(Few(text))] == movies


@pytest.mark.parametrize("title", [r"\ud800x", r"\u0000", r"\ud83c\udfac", r"\\ud800"])
def test_escapes_are_read_as_in_ndjson(read: Read, title: str) -> None:
    """Lone surrogates are left for the rules of a movie to refuse."""
    text = f'{{"title": "{title}"}}'

    assert told(read(f"[{text}]", "json")) == told(read(text)) == [(1, json.loads(text))]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "expected ["),
        (" \n", 2, "expected ["),
        (f"\n{TEXT}", 2, "expected ["),
        (f"[{TEXT},\n7,{TEXT}]", 2, "it must contain objects only"),
        (f"[{TEXT},\n]", 2, "it must contain objects only"),
        (f"[\n,{TEXT}]", 2, "it must contain objects only"),
        (f"[{TEXT},\n\n{TEXT}", 3, "expected , or ]"),
        (f"[{TEXT}\n{TEXT}]", 2, "expected , or ]"),
        (f"[{TEXT}]\n[{TEXT}]", 2, "expected nothing after its end"),
        ('[{"a": 01}]', 1, "expecting ',' delimiter"),
        ('[{"a": ' + 10_000 * "[" + 10_000 * "]" + "}", 1, "nested too deep"),
        ('[\n{"title": "x' + "y" * 2 * MAX_BODY_BYTES, 2, f"unterminated string, or {TOO_LONG}"),
    ],
    ids=range(12),
)
def test_an_invalid_array_stops_the_import(read: Read, text: str, line: int, problem: str) -> None:
    """The error has line and reason."""
    with pytest.raises(OperatorError) as caught:
        read(text, "json")

    expected = f"movies:{line}: expected a JSON array of movies: {problem}"
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("kind", ["ndjson", "json", "csv", "imdb"])
def test_a_row_that_is_too_long_stops_the_import(read: Read, kind: str) -> None:
    """A row has at most 1 MiB, in every format."""
    row = json.dumps({"title": "x" * MAX_BODY_BYTES})
    start = {"ndjson": "\n", "json": "[\n", "csv": CSV, "imdb": IMDB}[kind]

    with pytest.raises(OperatorError, match=f"movies:2: {TOO_LONG}"):
        read(f"{start}{row}]", kind)


def test_an_array_is_not_read_ahead() -> None:
    """The first movie is returned before the rest is read."""
    stream = io.BytesIO(b"[" + TEXT.encode() + b"," + b" " * 4 * READ_BYTES + b"]")

    next(read_array(stream))

    assert stream.tell() <= READ_BYTES


def test_a_csv_in_its_usual_forms(read: Read) -> None:
    """Three forms of runtimes, genres with commas or bars, quotes, a byte order mark, CRLF."""
    data = (
        "\ufeffid_of_it,title,year,runtime,genres\r\n"
        'x,"A ""B"", C",2001,102 mins,drama| war \r\n'
        "\r\n"
        'y,"two\nlines", 2001 ,102 min,"drama, war"\r\n'
        "z,Ä,2001,102,drama"
    )

    common = {"year": 2001, "runtime": "102 mins"}
    assert told(read(data, "csv")) == [
        (2, {"title": 'A "B", C', **common, "genres": ["drama", "war"]}),
        (4, {"title": "two\nlines", **common, "genres": ["drama", "war"]}),
        (6, {"title": "Ä", **common, "genres": ["drama"]}),
    ]


def test_columns_of_other_names_and_only_some_rows(read: Read) -> None:
    """--map names columns, or none; --where selects rows; an empty cell has no value."""
    data = "id,type,name,year_,length,tags\n7,Movie,Moana,2016,,a\n8,Show,Lost,2004,6 Seasons,b\n"

    columns = {"id": "", "title": "name", "year": "year_", "runtime": "length", "genres": "tags"}
    rows = read(data, "csv", where=[("type", "Movie")], **columns)

    assert told(rows) == [(2, {"title": "Moana", "year": 2016, "genres": ["a"]}), (3, None)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('"a' + "\nb,2001,1,c" * (MAX_BODY_BYTES // 8), f"{TOO_LONG}; is a closing quote missing?"),
        ('"a,2001,1,b', "the row is not CSV: unexpected end of data"),
        ('"a "b" c\nd",2001,1,b', "the row is not CSV: ',' expected after '\"'"),
        ('a\rb,"c\nd",1,b', f"the row is not CSV: {LONE_CR}"),
        ("a,2001,1,b\rb,2001,1,c\r", f"the row is not CSV: {LONE_CR}"),
    ],
    ids=range(5),
)
def test_a_row_that_is_not_csv_stops_the_import(read: Read, row: str, problem: str) -> None:
    """Text in its quotes is never read as rows."""
    with pytest.raises(OperatorError) as caught:
        read(f"{CSV}a,2001,1,b\n{row}\nb,2001,1,c\n", "csv")

    assert str(caught.value).startswith(f"movies:3: {problem}")


@pytest.mark.parametrize(
    ("data", "columns", "problem"),
    [
        ("", {}, 'one column "title", found an empty file'),
        ("name,year\n", {}, 'one column "title", found "name", "year"'),
        (CSV, {"year": "jahr"}, 'one column "jahr", found "title"'),
        ("year," + CSV, {}, 'one column "year", found "year", "title", "year"'),
    ],
)
def test_a_header_that_does_not_fit_stops_the_import(
    read: Read, data: str | bytes, columns: dict[str, str], problem: str
) -> None:
    """The error lists the columns."""
    with pytest.raises(OperatorError) as caught:
        read(data, "csv", **columns)

    assert str(caught.value).startswith(f"movies:1: expected a header with {problem}")


@pytest.mark.parametrize("name", ["a.ndjson", "a.json", "a.csv"])
def test_a_byte_order_mark_is_accepted_and_utf_16_named(tmp_path: Path, name: str) -> None:
    """In every form; editors and spreadsheets write them."""
    movie = '{"title": "A", "year": 2001, "runtime": "1 mins", "genres": ["x"]}'
    texts = {"a.ndjson": movie, "a.json": f"[{movie}]", "a.csv": f"{CSV}\nA,2001,1,x"}
    path = tmp_path / name

    path.write_text(texts[name], "utf-8-sig")
    with open_source(str(path)) as stream:
        start = stream.read(1)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        path.write_text(texts[name], encoding)
        with (
            pytest.raises(OperatorError, match=r"it is in UTF-16 or UTF-32: save it as UTF-8"),
            open_source(str(path)),
        ):
            pass

    assert start == texts[name][:1].encode()


def test_rows_of_empty_cells_are_skipped(read: Read) -> None:
    """As blank lines are: spreadsheets leave them behind."""
    rows = read(f'{CSV}A,2001,1,x\n,,,\n , ,"",\t\nB,2002,2,y\n,,,\n', "csv")

    assert [row.line for row in rows] == [2, 5]


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


def test_external_ids_lose_the_blanks_at_their_ends_in_tables_only(read: Read) -> None:
    """As years, runtimes and genres do: spreadsheets pad cells; JSON is exact."""
    head = "external_id,title,year,runtime,genres\n"
    in_csv, padded = read(f"{head} a:1\u00a0, A ,1999,1,x\n  ,A,1999,1,x\n", "csv")
    (in_imdb,) = read(f"{IMDB} tt1 \tmovie\tA\tA\t0\t1999\t\\N\t102\tDrama\n", "imdb")
    (in_json,) = read('{"external_id": "a:1 "}\n', "ndjson")

    found = [row.movie for row in (in_csv, in_imdb, in_json) if isinstance(row.movie, dict)]
    assert [movie["external_id"] for movie in found] == ["a:1", "imdb:tt1", "a:1 "]
    assert found[0]["title"] == " A "
    assert isinstance(padded.movie, dict)
    assert "external_id" not in padded.movie


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

    quoted = {"title": '"Quoted" title', "year": 1999, "runtime": "102 mins"}
    assert told(rows) == [
        (2, quoted | {"genres": ["Drama", "War"], "external_id": "imdb:tt1"}),
        (3, None),
        (4, {"title": "Nothing known", "external_id": "imdb:tt3"}),
        (5, "the row has 2 cells, the header 9"),
        (6, "the row has 2 cells, the header 9"),
    ]
