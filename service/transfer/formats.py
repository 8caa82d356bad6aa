"""The formats of import and export."""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from service.catalogue.movie import COLUMNS
from service.errors import OperatorError
from service.transfer.files import Source, make_unreadable_error
from service.transfer.json_rows import read_array, read_ndjson
from service.transfer.rows import BrokenFile, FileRow
from service.transfer.table_rows import read_csv, read_imdb, split_genres

IMPORTED = ("ndjson", "json", "csv", "imdb")
EXPORTED = ("ndjson", "json", "csv")
NEEDS_QUOTES = re.compile('[",\r\n]')
ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".tsv": "imdb"}


def detect_format(path: str, given: str | None, known: Sequence[str]) -> str:
    """Return the format that was given, or the one of the file name's ending."""
    name = path.lower().removesuffix(".gz")
    found = given or next((ENDINGS[end] for end in ENDINGS if name.endswith(end)), None)
    if found is None or found not in known:
        problem = f"{found} is for import only" if found else "its name does not tell the format"
        raise OperatorError(f"{path}: {problem}: add --format with one of {', '.join(known)}")
    return found


def check_columns(
    kind: str, columns: Sequence[tuple[str, str]], where: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """Check the options --map and --where; return field -> column."""
    if kind != "csv" and (columns or where):
        raise OperatorError("--map and --where are for CSV")
    names: dict[str, str] = {}
    for field, column in columns:
        if field not in COLUMNS:
            raise OperatorError(f"--map {field}: a movie has {', '.join(COLUMNS)}")
        if field in names:
            raise OperatorError(f"--map {field}: given more than once")
        names[field] = column
    return names


def read_rows(
    path: str,
    source: Source,
    kind: str,
    columns: Mapping[str, str],
    where: Sequence[tuple[str, str]],
) -> Iterator[FileRow]:
    """Read the rows of a file; raises `OperatorError` with the line that stops the reading."""
    try:
        match kind:
            case "csv":
                yield from read_csv(source.stream, columns, where)
            case "imdb":
                yield from read_imdb(source.stream)
            case "json":
                yield from read_array(source.stream)
            case _:
                yield from read_ndjson(source.stream)
    except BrokenFile as error:
        raise OperatorError(f"{path}:{error.line}: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OperatorError(
            f"{path}: the gzip data is incomplete or damaged: {str(error).rstrip('.').lower()}"
        ) from error
    except OSError as error:
        raise make_unreadable_error(path, error) from error


class OutputFormat(NamedTuple):
    """How to write movies: the text before, between and after them; `empty`: without movies."""

    head: bytes
    movie: Callable[[dict[str, Any]], bytes]
    separator: bytes
    tail: bytes
    empty: bytes


def output_format(kind: str) -> OutputFormat:
    """Return how to write a format; `movie` takes a movie as the API returns it."""
    if kind == "csv":
        header = ",".join(COLUMNS).encode() + b"\n"
        return OutputFormat(header, _to_csv, b"\n", b"\n", header)
    if kind == "json":
        return OutputFormat(b"[\n", _to_json, b",\n", b"\n]\n", b"[]\n")
    return OutputFormat(b"", _to_json, b"\n", b"\n", b"")


def _to_json(movie: dict[str, Any]) -> bytes:
    return orjson.dumps(movie, option=orjson.OPT_UTC_Z)


def _to_csv(movie: dict[str, Any]) -> bytes:
    return ",".join([_to_cell(value) for value in orjson.loads(_to_json(movie)).values()]).encode()


def _to_cell(value: Any) -> str:
    """Quote a cell; Python's csv module does not quote a lone CR before Python 3.13."""
    text = _join_genres(value) if isinstance(value, list) else str(value)
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


def _join_genres(genres: list[str]) -> str:
    """Join genres with bars, or as a JSON array if they could not be split again."""
    text = "|".join(genres)
    if not text.startswith("[") and split_genres(text) == genres:
        return text
    return orjson.dumps(genres).decode()
