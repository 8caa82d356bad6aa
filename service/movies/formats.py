"""The formats of import and export."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import BinaryIO

from service.errors import OperatorError
from service.movies.json_rows import read_array, read_ndjson
from service.movies.movie import COLUMNS
from service.movies.rows import BrokenFile, FileRow
from service.movies.table_rows import read_csv, read_imdb
from service.movies.transfer_files import convert_read_errors

READERS = {"ndjson": read_ndjson, "json": read_array, "imdb": read_imdb}
IMPORTED = ("ndjson", "json", "csv", "imdb")
ENDINGS = {".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "json", ".csv": "csv", ".tsv": "imdb"}


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
    rows = READERS[kind](stream) if kind in READERS else read_csv(stream, columns, where)
    return _convert_errors(path, rows)


def _convert_errors(path: str, rows: Iterator[FileRow]) -> Iterator[FileRow]:
    try:
        with convert_read_errors(path):
            yield from rows
    except BrokenFile as error:
        raise OperatorError(f"{path}:{error.line}: {error}") from error
