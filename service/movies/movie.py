"""The movie: its columns, and its forms: JSON, and what exports and streams write."""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import orjson

from service.database.resource import Resource
from service.errors import Malformed


class Movie(NamedTuple):
    """A movie as the queries return it; the order of fields is that of the columns."""

    id: int
    title: str
    year: int
    runtime: int  # minutes
    genres: list[str]
    external_id: str | None  # in the system that the movie comes from
    version: int
    created_at: datetime
    updated_at: datetime

    @property
    def relevance(self) -> int:
        """The value that `sort=relevance` sorts by: `search_rank` of the migrations."""
        return len(self.title) * 10**10 - self.year


COLUMNS = Movie._fields
READ_ONLY = ("id", "version", "created_at", "updated_at")
FIELDS = tuple(name for name in COLUMNS if name not in READ_ONLY)  # clients send these
MOVIES = Resource(
    noun="movie",
    table="movies",
    row=Movie,
    fields=FIELDS,
    unique="external_id",
    own_tables=("movie_changes", "movie_feed", "search_words"),
)
COLUMN_TYPES = MOVIES.columns
QUERIES = MOVIES.expect_queries()
FIRST_FORM = 0xEE72D14C
# The form of responses, for entity tags: empty for the fields of the first release.
_FORM = zlib.crc32(repr(COLUMN_TYPES).encode())
FORM = "" if _FORM == FIRST_FORM else f"-{_FORM:x}"
FORM_BEFORE = ""  # of the release before, 1.1.0: clients still hold its tags, and its processes run
# The entity tag (RFC 9110, 8.8.3): id and version, and the form. It stands for the bytes of the
# response: another name or type of a field gives another form.
ENTITY_TAG = f'"%d-%d{FORM}"'
CSV_HEAD = ",".join(COLUMNS).encode() + b"\n"
NEEDS_QUOTES = re.compile('[",\r\n]')


def movie_json(movie: Movie) -> dict[str, object]:
    """Return the movie as clients see it: runtime as `<number> mins`, times in UTC, its tag."""
    values: dict[str, object] = dict(zip(COLUMNS, movie, strict=True))
    values["runtime"] = f"{movie.runtime} mins"
    values["etag"] = ENTITY_TAG % (movie.id, movie.version)
    return values


def previous_json(text: str) -> dict[str, object]:
    """Return fields that PostgreSQL has written as JSON, as clients see them in a movie."""
    row = orjson.loads(text)
    fields = {name: row[name] for name in FIELDS if name in row}
    shown = movie_json(Movie._make([0] * len(COLUMNS))._replace(**fields))
    return {name: shown[name] for name in fields}


def parse_movie(text: str) -> Movie:
    """Return the movie of a row that PostgreSQL has written as JSON; missing columns are null."""
    row = orjson.loads(text)
    values = (row.get(name) for name in COLUMNS)
    kinds = zip(values, COLUMN_TYPES.values(), strict=True)
    return Movie._make(
        datetime.fromisoformat(value).astimezone(UTC) if kind is datetime else value
        for value, kind in kinds
    )


class Form(NamedTuple):
    """How to write movies: the text before, between and after them."""

    head: bytes
    encode: Callable[[dict[str, object]], bytes]  # of a movie as the API returns it
    separator: bytes
    tail: bytes
    media_type: str


_to_json = partial(orjson.dumps, option=orjson.OPT_UTC_Z)
LINE_ENDS = "\u0085\u2028\u2029"  # JSON allows them in strings, but many clients split lines there


def _to_line(movie: dict[str, object]) -> bytes:
    line = orjson.dumps(movie, option=orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)
    for end in "" if line.isascii() else LINE_ENDS:
        line = line.replace(end.encode(), f"\\u{ord(end):04x}".encode())
    return line


def _to_csv(movie: dict[str, object]) -> bytes:
    values = orjson.loads(_to_json(movie))
    cells = [_to_cell(value) for name, value in values.items() if name != "etag"]
    return f"{','.join(cells)}\n".encode()


def split_genres(text: str) -> list[str]:
    """Split the genres of a cell: a JSON array, or separated by `|`, or else by commas."""
    if text.startswith("["):
        try:
            return list(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise Malformed('"genres" starts with [ but is not a JSON array of strings') from error
    return [genre.strip() for genre in text.split("|" if "|" in text else ",")]


def _to_cell(value: object) -> str:
    """Quote a cell; Python's csv module does not quote a lone CR before Python 3.13."""
    if value is None:
        return ""
    text = _join_genres(value) if isinstance(value, list) else str(value)
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


def _join_genres(genres: list[str]) -> str:
    """Join genres with bars, or as a JSON array if splitting would not return the same genres."""
    text = "|".join(genres)
    if not text.startswith("[") and split_genres(text) == genres:
        return text
    return orjson.dumps(genres).decode()


OUTPUT_FORMS: Mapping[str, Form] = {
    "ndjson": Form(b"", _to_line, b"", b"", "application/x-ndjson"),
    "json": Form(b"[\n", _to_json, b",\n", b"\n]\n", "application/json"),
    "csv": Form(CSV_HEAD, _to_csv, b"", b"", "text/csv; charset=utf-8; header=present"),
}
