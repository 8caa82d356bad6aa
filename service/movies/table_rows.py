"""Reads movies from tables: CSV (RFC 4180) and IMDb's title.basics.tsv.

https://www.rfc-editor.org/rfc/rfc4180, https://developer.imdb.com/non-commercial-datasets/
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from service.errors import Malformed, quote
from service.movies.movie import COLUMN_TYPES, COLUMNS, FIELDS, split_genres
from service.movies.rows import TOO_LONG, BrokenFile, FileRow, read_lines
from service.movies.rules import OPTIONAL
from service.web.bodies import MAX_BYTES

INTEGER = re.compile(r"-?[0-9]{1,20}")
LONE_CR = "CR without LF: end lines with LF or CR LF, and quote cells with CR"
RUNTIME = re.compile(r"(-?[0-9]{1,20})(?: mins?)?")


def read_csv(
    stream: BinaryIO, columns: Mapping[str, str], where: Sequence[tuple[str, str]]
) -> Iterator[FileRow]:
    """Yield the rows of a CSV with a header.

    `columns`: field -> name of its column, if that differs; "" for none. `where`: column and value
    of the rows to import; other rows are left out. Raises `BrokenFile` if the header does not fit,
    and for a row that is not CSV, because the start of the next row is unknown.
    """
    return _read_table(_read_records(stream), columns, where, empty="")


def read_imdb(stream: BinaryIO) -> Iterator[FileRow]:
    r"""Yield the rows of title.basics.tsv: split by tabs, without quotes; `\N` is an empty cell.

    Their external ids are like `imdb:tt0034583`.
    """
    records = _read_records(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
    columns = {"title": "primaryTitle", "year": "startYear", "runtime": "runtimeMinutes"}
    columns["external_id"] = "tconst"
    for row in _read_table(records, columns, [("titleType", "movie")], empty="\\N"):
        if isinstance(row.movie, dict) and "external_id" in row.movie:
            row.movie["external_id"] = f"imdb:{row.movie['external_id']}"
        yield row


Record = tuple[int, list[str], int]  # line, cells, and size in bytes


def _read_records(stream: BinaryIO, **form: Any) -> Iterator[Record]:
    """Split a file into records, with parameters of Python's csv module.

    Skips blank lines, and rows of empty cells, as spreadsheets write them.
    """
    first = 1  # line of the record
    size = 0

    def decode_lines() -> Iterator[str]:
        nonlocal size
        for _, line in read_lines(stream):
            size += len(line)
            if size > MAX_BYTES:
                raise BrokenFile(first, f"{TOO_LONG}; is a closing quote missing?")
            yield line.decode("utf-8", "surrogateescape")

    csv.field_size_limit(MAX_BYTES)
    reader = csv.reader(decode_lines(), strict=True, **form)
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                yield first, cells, size
            first = reader.line_num + 1
            size = 0
    except csv.Error as error:
        reason = LONE_CR if str(error).startswith("new-line character") else error
        raise BrokenFile(first, f"the row is not CSV: {reason}") from error


def _read_table(
    records: Iterator[Record],
    columns: Mapping[str, str],
    where: Sequence[tuple[str, str]],
    *,
    empty: str,
) -> Iterator[FileRow]:
    """Map the cells of each record to the fields of a movie; `empty`: the text of an empty cell."""
    _, header, _ = next(records, (1, [], 0))
    names = {
        field: columns.get(field, field)
        for field in COLUMNS
        if (field in FIELDS and field not in OPTIONAL) or field in columns or field in header
    }
    fields = [(field, _find_column(header, name)) for field, name in names.items() if name]
    conditions = [(_find_column(header, name), value) for name, value in where]
    for line, cells, size in records:
        given = dict(zip(header, cells, strict=False))
        try:
            _check_cells(cells, len(header))
            is_wanted = all(cells[index] == value for index, value in conditions)
            values = {
                field: _parse_cell(field, cells[index])
                for field, index in fields
                if is_wanted and cells[index] != empty
            }
        except Malformed as error:
            yield FileRow(line, given, error, size)
        else:
            yield FileRow(line, given, values if is_wanted else None, size)


def _find_column(header: Sequence[str], name: str) -> int:
    if header.count(name) != 1:
        found = ", ".join(map(quote, header[:100])) or "an empty file"
        raise BrokenFile(1, f"expected a header with one column {quote(name)}, found {found}")
    return header.index(name)


def _check_cells(cells: Sequence[str], number: int) -> None:
    if len(cells) != number:
        raise Malformed(f"the row has {len(cells)} cells, the header {number}")
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:  # from "surrogateescape" above
        raise Malformed("the row is not UTF-8") from error


def _parse_cell(field: str, text: str) -> object:
    if field == "genres":
        return split_genres(text)
    if field == "runtime":
        match = RUNTIME.fullmatch(text.strip())
        if not match:
            raise Malformed(
                f'"runtime" must be like "102 mins", "102 min" or "102", found {quote(text)}'
            )
        return f"{int(match[1])} mins"
    if COLUMN_TYPES[field] is int:
        if not INTEGER.fullmatch(text.strip()):
            raise Malformed(f'"{field}" must be a whole number, found {quote(text)}')
        return int(text)
    return text
