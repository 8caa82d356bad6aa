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
from service.web.bodies import MAX_BODY_BYTES

INTEGER = re.compile(r"-?[0-9]{1,20}")
LONE_CR = "CR without LF: end lines with LF or CR LF, and quote cells with CR"
RUNTIME = re.compile(r"(-?[0-9]{1,20})(?: mins?)?")


def read_csv(
    stream: BinaryIO,
    columns: Mapping[str, str],
    where: Sequence[tuple[str, str]],
    empty: str = "",
    **form: Any,
) -> Iterator[FileRow]:
    """Yield the rows of a CSV with a header.

    `columns`: field -> name of its column, if that differs; "" for none. `where`: column and value
    of the rows to import; other rows are left out. `empty`: the text of an empty cell. `form`:
    parameters of Python's csv module. Raises `BrokenFile` if the header does not fit, and for a row
    that is not CSV, because the start of the next row is unknown.
    """
    records = _read_records(stream, **form)
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
        if len(cells) != len(header):
            problem = f"the row has {len(cells)} cells, the header {len(header)}"
            yield FileRow(line, given, Malformed(problem), size)
            continue
        try:
            "".join(cells).encode()
            is_wanted = all(cells[index] == value for index, value in conditions)
            values = {
                field: _parse_cell(field, cells[index])
                for field, index in fields
                if is_wanted
                and cells[index] != empty
                and (field != "external_id" or cells[index].strip())
            }
        except Malformed as error:
            yield FileRow(line, given, error, size)
        except UnicodeEncodeError:  # from "surrogateescape" below
            yield FileRow(line, given, Malformed("the row is not UTF-8"), size)
        else:
            yield FileRow(line, given, values if is_wanted else None, size)


def read_imdb(stream: BinaryIO) -> Iterator[FileRow]:
    """Yield the rows of title.basics.tsv, which has no quotes; ids are like `imdb:tt0034583`."""
    columns = {"title": "primaryTitle", "year": "startYear", "runtime": "runtimeMinutes"}
    columns["external_id"] = "tconst"
    form: dict[str, Any] = {"empty": "\\N", "delimiter": "\t", "quoting": csv.QUOTE_NONE}
    for row in read_csv(stream, columns, [("titleType", "movie")], **form):
        if isinstance(row.movie, dict) and row.movie.get("external_id"):
            row.movie["external_id"] = f"imdb:{row.movie['external_id']}"
        yield row


Record = tuple[int, list[str], int]  # line, cells, and size in bytes


def _read_records(stream: BinaryIO, **form: Any) -> Iterator[Record]:
    """Split a CSV into records; skip blank lines, and the empty rows of spreadsheets."""
    first = 1  # line of the record
    size = 0

    def decode_lines() -> Iterator[str]:
        nonlocal size
        for _, line in read_lines(stream):
            size += len(line)
            if size > MAX_BODY_BYTES:
                raise BrokenFile(first, f"{TOO_LONG}; is a closing quote missing?")
            yield line.decode("utf-8", "surrogateescape")

    csv.field_size_limit(MAX_BODY_BYTES)
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


def _find_column(header: Sequence[str], name: str) -> int:
    if header.count(name) != 1:
        found = ", ".join(map(quote, header[:100])) or "an empty file"
        raise BrokenFile(1, f"expected a header with one column {quote(name)}, found {found}")
    return header.index(name)


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
    return text.strip() if field == "external_id" else text
