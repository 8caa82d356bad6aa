"""The formats of import and export."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import orjson

from service.catalogue.movie import COLUMNS
from service.errors import OperatorError
from service.transfer.files import convert_read_errors
from service.transfer.json_rows import read_array, read_ndjson
from service.transfer.rows import BrokenFile, FileRow
from service.transfer.table_rows import read_csv, read_imdb, split_genres

IMPORTED = ("ndjson", "json", "csv", "imdb")
ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".tsv": "imdb"}
NEEDS_QUOTES = re.compile('[",\r\n]')


def detect_format(path: str, given: str | None, known: Collection[str]) -> str:
    """Return the given format, or else the format of the file name's ending."""
    name = path.lower().removesuffix(".gz")
    found = given or next((ENDINGS[end] for end in ENDINGS if name.endswith(end)), None)
    if found is None or found not in known:
        problem = f"{found} is for import only" if found else "its name does not tell the format"
        raise OperatorError(f"{path}: {problem}: add --format with one of {', '.join(known)}")
    return found


def read_rows(
    path: str,
    stream: BinaryIO,
    kind: str,
    columns: Mapping[str, str],
    where: Sequence[tuple[str, str]],
) -> Iterator[FileRow]:
    """Read the rows of a file; raises `OperatorError` with the line that stops the reading.

    `columns` (field -> column) and `where` (column, value) are for CSV.
    """
    if kind != "csv" and (columns or where):
        raise OperatorError("--map and --where are for CSV")
    if unknown := next((field for field in columns if field not in COLUMNS), None):
        raise OperatorError(f"--map {unknown}: a movie has {', '.join(COLUMNS)}")
    match kind:
        case "csv":
            rows = read_csv(stream, columns, where)
        case "imdb":
            rows = read_imdb(stream)
        case "json":
            rows = read_array(stream)
        case _:
            rows = read_ndjson(stream)
    return _convert_errors(path, rows)


def _convert_errors(path: str, rows: Iterator[FileRow]) -> Iterator[FileRow]:
    try:
        with convert_read_errors(path):
            yield from rows
    except BrokenFile as error:
        raise OperatorError(f"{path}:{error.line}: {error}") from error


class OutputFormat(NamedTuple):
    """How to write movies: the text before, between and after them."""

    head: bytes
    encode: Callable[[dict[str, Any]], bytes]  # of a movie as the API returns it
    separator: bytes
    tail: bytes


def _to_json(movie: dict[str, Any]) -> bytes:
    return orjson.dumps(movie, option=orjson.OPT_UTC_Z)


def _to_line(movie: dict[str, Any]) -> bytes:
    return _to_json(movie) + b"\n"


def _to_csv(movie: dict[str, Any]) -> bytes:
    cells = [_to_cell(value) for value in orjson.loads(_to_json(movie)).values()]
    return f"{','.join(cells)}\n".encode()


def _to_cell(value: Any) -> str:
    """Quote a cell; Python's csv module does not quote a lone CR before Python 3.13."""
    text = _join_genres(value) if isinstance(value, list) else str(value)
    return '"' + text.replace('"', '""') + '"' if NEEDS_QUOTES.search(text) else text


def _join_genres(genres: list[str]) -> str:
    """Join genres with bars, or as a JSON array if splitting would not return the same genres."""
    text = "|".join(genres)
    if not text.startswith("[") and split_genres(text) == genres:
        return text
    return orjson.dumps(genres).decode()


EXPORTED: Mapping[str, OutputFormat] = {
    "ndjson": OutputFormat(b"", _to_line, b"", b""),
    "json": OutputFormat(b"[\n", _to_json, b",\n", b"\n]\n"),
    "csv": OutputFormat(",".join(COLUMNS).encode() + b"\n", _to_csv, b"", b""),
}
