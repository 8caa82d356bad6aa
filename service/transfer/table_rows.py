"""Reads movies from tables: CSV (RFC 4180) and IMDb's title.basics.tsv.

https://www.rfc-editor.org/rfc/rfc4180, https://developer.imdb.com/non-commercial-datasets/
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from service.catalogue.movie import COLUMNS, FIELDS
from service.catalogue.rules import quote
from service.catalogue.strict_json import MAX_BYTES, parse_object
from service.errors import Malformed
from service.transfer import rows
from service.transfer.rows import TOO_LONG, BrokenFile, FileRow, to_text

INTEGER = re.compile(r"-?[0-9]{1,20}")
RUNTIME = re.compile(r"(-?[0-9]{1,20})(?: mins?)?")
IMDB_COLUMNS = {
    "title": "primaryTitle",
    "year": "startYear",
    "runtime": "runtimeMinutes",
    "genres": "genres",
}
IMDB_WHERE = (("titleType", "movie"),)


class Record(NamedTuple):
    """The cells of a row, or the error that prevents splitting it."""

    line: int
    text: str  # the row, if it cannot be split
    cells: list[str] | Malformed
    size: int  # bytes


def read_csv(
    stream: BinaryIO, columns: Mapping[str, str], where: Sequence[tuple[str, str]]
) -> Iterator[FileRow]:
    """Yield the rows of a CSV with a header.

    `columns`: field -> name of its column, if that differs; "" for none. `where`: column and value
    of the rows to import; other rows are left out. Raises `BrokenFile` if the header does not fit,
    or if a row's end is unknown because of an open quote.
    """
    records = _read_csv_records(stream)
    header = _read_header(records)
    names = {field: columns.get(field, field) for field in COLUMNS}
    own = [field for field in COLUMNS if field not in FIELDS]
    missing = [field for field in own if names[field] not in header]
    if missing and len(missing) < len(own):
        present = next(field for field in own if field not in missing)
        raise BrokenFile(
            1,
            f"there is a column {quote(names[present])}, but none for {', '.join(missing)}:"
            f" expected all four of {', '.join(own)}, or none (--map {present}= leaves one out)",
        )
    # A column that --map names must exist.
    wanted = {f: c for f, c in names.items() if c and (f in columns or f not in missing)}
    return _read_rows(records, _Table(header, wanted, where, empty=""))


def read_imdb(stream: BinaryIO) -> Iterator[FileRow]:
    r"""Yield the rows of title.basics.tsv: split by tabs, without quotes; `\N` is an empty cell."""
    records = _read_imdb_records(stream)
    return _read_rows(records, _Table(_read_header(records), IMDB_COLUMNS, IMDB_WHERE, empty="\\N"))


def split_genres(text: str) -> list[str]:
    """Split the genres of a cell: a JSON array, or separated by `|`, or else by commas."""
    if text.startswith("["):
        try:
            genres = parse_object(b'{"genres": %b}' % text.encode("utf-8", "surrogatepass"))
        except Malformed:
            genres = {}
        if list(genres) != ["genres"]:
            raise Malformed('"genres" starts with [ but is not a JSON array of strings')
        return list(genres["genres"])
    return [genre.strip() for genre in text.split("|" if "|" in text else ",")]


class _Table:
    """Maps the cells of a row to the fields of a movie; `empty`: the text of an empty cell."""

    def __init__(
        self,
        header: list[str],
        columns: Mapping[str, str],
        where: Sequence[tuple[str, str]],
        *,
        empty: str,
    ) -> None:
        self.header = header
        self._fields = [(field, self._index(name)) for field, name in columns.items()]
        self._where = [(self._index(name), value) for name, value in where]
        self._empty = empty

    def movie(self, cells: list[str]) -> dict[str, Any] | None:
        """Return the movie in the API's form, or None to leave the row out; raises `Malformed`."""
        if len(cells) != len(self.header):
            raise Malformed(f"the row has {len(cells)} cells, the header {len(self.header)}")
        if any(cells[index] != value for index, value in self._where):
            return None
        return {
            field: _parse_cell(field, cells[index])
            for field, index in self._fields
            if cells[index] != self._empty
        }

    def _index(self, name: str) -> int:
        count = self.header.count(name)
        if count == 1:
            return self.header.index(name)
        problem = f"more than one column {quote(name)}" if count else f"no column {quote(name)}"
        raise BrokenFile(1, f"there is {problem} among {', '.join(map(quote, self.header[:100]))}")


def _parse_cell(field: str, text: str) -> Any:
    if field == "genres":
        return split_genres(text)
    if field in ("year", "id", "version"):
        if not INTEGER.fullmatch(text.strip()):
            raise Malformed(f'"{field}" must be a whole number, found {quote(text)}')
        return int(text)
    if field == "runtime":
        match = RUNTIME.fullmatch(text.strip())
        if not match:
            raise Malformed(
                f'"runtime" must be like "102 mins", "102 min" or "102", found {quote(text)}'
            )
        return f"{int(match[1])} mins"
    return text


def _read_header(records: Iterator[Record]) -> list[str]:
    first = next(records, None)
    if first is None:
        raise BrokenFile(1, "the file is empty; expected a header with the names of the columns")
    if isinstance(first.cells, Malformed):
        raise BrokenFile(first.line, f"the header cannot be read: {first.cells}")
    return first.cells


def _read_rows(records: Iterable[Record], table: _Table) -> Iterator[FileRow]:
    for line, text, cells, size in records:
        if isinstance(cells, Malformed):
            yield FileRow(line, text, cells, size)
            continue
        given = dict(zip(table.header, cells, strict=False))
        try:
            yield FileRow(line, given, table.movie(cells), size)
        except Malformed as error:
            yield FileRow(line, given, error, size)


def _read_imdb_records(stream: BinaryIO) -> Iterator[Record]:
    for line in rows.read_lines(stream):
        size = len(line.data)
        if line.is_too_long:
            yield Record(line.number, rows.reject_long_line(line).given, Malformed(TOO_LONG), size)
            continue
        try:
            text = line.data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            malformed = Malformed(f"the row is not UTF-8 at byte {error.start}")
            yield Record(line.number, to_text(line.data), malformed, size)
            continue
        if text:
            yield Record(line.number, "", text.split("\t"), size)


class _CsvLines:
    """Lines for Python's csv module, which takes as many as a record has; collects errors."""

    def __init__(self, stream: BinaryIO) -> None:
        self._lines = rows.read_lines(stream)
        self._is_at_end = False
        self.begin()

    def begin(self) -> None:
        """Begin a record."""
        self.first = 0
        self.error: Malformed | None = None
        self.size = 0
        self._data: list[bytes] = []

    def text(self) -> str:
        """Return the record as text."""
        return to_text(b"".join(self._data))

    def has_open_quote(self) -> bool:
        """Return whether the record's lines end inside quotes."""
        return self._is_at_end or sum(data.count(b'"') for data in self._data) % 2 == 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self._is_at_end = True
            raise StopIteration
        self.first = self.first or line.number
        data = line.data.removeprefix(b"\xef\xbb\xbf") if line.number == 1 else line.data
        self.size += len(data)
        self._data.append(data)
        if line.is_too_long or self.size > MAX_BYTES:
            raise BrokenFile(self.first, f"{TOO_LONG}; is a closing quote missing?")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"line {line.number} is not UTF-8 at byte {error.start}"
            self.error = self.error or Malformed(where)
            return data.decode("utf-8", "replace")


def _read_csv_records(stream: BinaryIO) -> Iterator[Record]:
    csv.field_size_limit(MAX_BYTES)  # `_CsvLines` limits the row
    lines = _CsvLines(stream)
    reader = csv.reader(lines, strict=True)
    while True:
        lines.begin()
        cells: list[str] = []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"the row is not CSV: {error}"
            if lines.has_open_quote():  # text inside quotes must not become rows
                raise BrokenFile(lines.first, f"{problem}; a closing quote is missing") from error
            lines.error = Malformed(problem)
        if lines.error:
            yield Record(lines.first, lines.text(), lines.error, lines.size)
        elif cells:
            yield Record(lines.first, "", cells, lines.size)
