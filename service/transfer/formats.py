"""The formats, by the names of their files."""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from service.catalogue.movie import COLUMNS
from service.errors import OperatorError
from service.transfer.files import Source, unreadable
from service.transfer.json_rows import array, ndjson
from service.transfer.rows import Broken, Row
from service.transfer.table_rows import csv_rows, imdb_rows, split_genres

IMPORTED = ("ndjson", "json", "csv", "imdb")
EXPORTED = ("ndjson", "json", "csv")
ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".tsv": "imdb"}


def format_of(path: str, given: str | None, known: Sequence[str]) -> str:
    """Return the format that was given, or else what the name ends with says."""
    name = path.lower().removesuffix(".gz")
    found = given or next((ENDINGS[end] for end in ENDINGS if name.endswith(end)), None)
    if found is None or found not in known:
        problem = f"{found} is for import only" if found else "cannot tell its format"
        raise OperatorError(f"{path}: {problem}: add --format {', '.join(known)}")
    return found


def rows(
    path: str,
    source: Source,
    kind: str,
    columns: Mapping[str, str],
    where: Sequence[tuple[str, str]],
) -> Iterator[Row]:
    """Read the rows of a file; `OperatorError` with the line where it cannot be read further."""
    try:
        match kind:
            case "csv":
                yield from csv_rows(source.stream, columns, where)
            case "imdb":
                yield from imdb_rows(source.stream)
            case "json":
                yield from array(source.stream)
            case _:
                yield from ndjson(source.stream)
    except Broken as error:
        raise OperatorError(f"{path}:{error.line}: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OperatorError(
            f"{path}: what gzip packed is cut off or damaged: {str(error).rstrip('.').lower()}"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


class Writing(NamedTuple):
    """How movies are written: before the first, each, between two, after the last; or none."""

    head: bytes
    movie: Callable[[dict[str, Any]], bytes]
    between: bytes
    tail: bytes
    empty: bytes


def writing(kind: str) -> Writing:
    """Tell how a format is written, from movies as the API answers them."""
    if kind == "csv":
        header = ",".join(COLUMNS).encode() + b"\n"
        return Writing(header, _csv, b"\n", b"\n", header)
    if kind == "json":
        return Writing(b"[\n", _json, b",\n", b"\n]\n", b"[]\n")
    return Writing(b"", _json, b"\n", b"\n", b"")


def _json(movie: dict[str, Any]) -> bytes:
    return orjson.dumps(movie, option=orjson.OPT_UTC_Z)


def _csv(movie: dict[str, Any]) -> bytes:
    return ",".join([_cell(value) for value in orjson.loads(_json(movie)).values()]).encode()


def _cell(value: Any) -> str:
    """Write a cell; not with Python's csv, which before 3.13 leaves a lone CR unquoted."""
    text = _joined(value) if isinstance(value, list) else str(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def _joined(genres: list[str]) -> str:
    """Put genres into one cell, in the readable way if that can be read back."""
    text = "|".join(genres)
    if not text.startswith("[") and split_genres(text) == genres:
        return text
    return orjson.dumps(genres).decode()


_QUOTED = re.compile('[",\r\n]')
