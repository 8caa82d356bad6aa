"""Movies in tables: CSV (RFC 4180) and IMDb's title.basics.tsv.

https://www.rfc-editor.org/rfc/rfc4180, https://developer.imdb.com/non-commercial-datasets/
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from service.catalogue.movie import COLUMNS, FIELDS
from service.catalogue.rules import quoted
from service.catalogue.strict_json import MAX_BYTES, parse_object
from service.errors import Malformed
from service.transfer.rows import TOO_LONG, Broken, Row, lines, shown, too_long

WHOLE = re.compile(r"-?[0-9]{1,20}")
RUNTIME = re.compile(r"(-?[0-9]{1,20})(?: mins?)?")
IMDB_COLUMNS = {
    "title": "primaryTitle",
    "year": "startYear",
    "runtime": "runtimeMinutes",
    "genres": "genres",
}
IMDB_MOVIES = (("titleType", "movie"),)


class Record(NamedTuple):
    """The cells of a row, or why they cannot be told apart."""

    line: int
    text: str  # of those that cannot be told apart
    cells: list[str] | Malformed
    size: int  # bytes


def csv_rows(
    stream: BinaryIO, columns: Mapping[str, str], where: Sequence[tuple[str, str]]
) -> Iterator[Row]:
    """Rows of a CSV with a header; `Broken` where that does not fit, or a row has no certain end.

    `columns`: the column of a field that has another name, "" for none; `where`: column and value
    of the rows to import; other rows are left out.
    """
    records = _csv_records(stream)
    header = _header(records)
    named = {field: columns.get(field, field) for field in COLUMNS}
    own = [field for field in COLUMNS if field not in FIELDS]
    missing = [field for field in own if named[field] not in header]
    if missing and len(missing) < len(own):
        has = next(field for field in own if field not in missing)
        raise Broken(
            1,
            f"there is a column {quoted(named[has])}, but none for {', '.join(missing)}: expected"
            f" all four of {', '.join(own)}, or none (--map {has}= leaves one out)",
        )
    # Those that are named have to be there.
    wanted = {f: c for f, c in named.items() if c and (f in columns or f not in missing)}
    return _rows(records, _Table(header, wanted, where, empty=""))


def imdb_rows(stream: BinaryIO) -> Iterator[Row]:
    r"""Rows of title.basics.tsv, in which only tabs and line ends mean something, and `\N` none."""
    records = _imdb_records(stream)
    return _rows(records, _Table(_header(records), IMDB_COLUMNS, IMDB_MOVIES, empty="\\N"))


def split_genres(text: str) -> list[str]:
    """Genres in one cell: a JSON array, or separated by `|`, or else by commas."""
    if text.startswith("["):
        try:
            genres = parse_object(b'{"genres": %b}' % text.encode("utf-8", "surrogatepass"))
        except Malformed:
            genres = {}
        if list(genres) != ["genres"]:
            raise Malformed('"genres" starts with [ and is no JSON array of strings')
        return list(genres["genres"])
    return [genre.strip() for genre in text.split("|" if "|" in text else ",")]


class _Table:
    """Where in a row the fields of a movie are; `empty` is how a cell says that it has none."""

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
        """The movie in the API's form; None for a row that is left out; `Malformed`."""
        if len(cells) != len(self.header):
            raise Malformed(f"the row has {len(cells)} cells, the header {len(self.header)}")
        if any(cells[index] != value for index, value in self._where):
            return None
        return {
            field: _value(field, cells[index])
            for field, index in self._fields
            if cells[index] != self._empty
        }

    def _index(self, name: str) -> int:
        found = self.header.count(name)
        if found == 1:
            return self.header.index(name)
        problem = f"more than one column {quoted(name)}" if found else f"no column {quoted(name)}"
        raise Broken(1, f"there is {problem} among {', '.join(map(quoted, self.header[:100]))}")


def _value(field: str, text: str) -> Any:
    if field == "genres":
        return split_genres(text)
    if field in ("year", "id", "version"):
        if not WHOLE.fullmatch(text.strip()):
            raise Malformed(f'"{field}" must be a whole number, found {quoted(text)}')
        return int(text)
    if field == "runtime":
        match = RUNTIME.fullmatch(text.strip())
        if not match:
            raise Malformed(
                f'"runtime" must be like "102 mins", "102 min" or "102", found {quoted(text)}'
            )
        return f"{int(match[1])} mins"
    return text


def _header(records: Iterator[Record]) -> list[str]:
    first = next(records, None)
    if first is None:
        raise Broken(1, "the file is empty; expected a header with the names of the columns")
    if isinstance(first.cells, Malformed):
        raise Broken(first.line, f"the header cannot be read: {first.cells}")
    return first.cells


def _rows(records: Iterable[Record], table: _Table) -> Iterator[Row]:
    for line, text, cells, size in records:
        if isinstance(cells, Malformed):
            yield Row(line, text, cells, size)
            continue
        given = dict(zip(table.header, cells, strict=False))
        try:
            yield Row(line, given, table.movie(cells), size)
        except Malformed as error:
            yield Row(line, given, error, size)


def _imdb_records(stream: BinaryIO) -> Iterator[Record]:
    for line in lines(stream):
        size = len(line.data)
        if line.too_long:
            yield Record(line.number, too_long(line).given, Malformed(TOO_LONG), size)
            continue
        try:
            text = line.data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            fault = Malformed(f"the row is not UTF-8 at byte {error.start}")
            yield Record(line.number, shown(line.data), fault, size)
            continue
        if text:
            yield Record(line.number, "", text.split("\t"), size)


class _CsvLines:
    """Lines for Python's csv, which asks for as many as a record takes; remembers what is wrong.

    Its error is not the end of them: it is asked for the next record.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._lines = lines(stream)
        self._ended = False
        self.begin()

    def begin(self) -> None:
        """Before a record."""
        self.first = 0
        self.fault: Malformed | None = None
        self.size = 0
        self._data: list[bytes] = []

    def shown(self) -> str:
        """The record as text."""
        return shown(b"".join(self._data))

    def open(self) -> bool:
        """Whether the lines of the record end within quotes."""
        return self._ended or sum(data.count(b'"') for data in self._data) % 2 == 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self._ended = True
            raise StopIteration
        self.first = self.first or line.number
        data = line.data.removeprefix(b"\xef\xbb\xbf") if line.number == 1 else line.data
        self.size += len(data)
        self._data.append(data)
        if line.too_long or self.size > MAX_BYTES:
            raise Broken(self.first, f"{TOO_LONG}; is a quote left open?")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"line {line.number} is not UTF-8 at byte {error.start}"
            self.fault = self.fault or Malformed(where)
            return data.decode("utf-8", "replace")


def _csv_records(stream: BinaryIO) -> Iterator[Record]:
    csv.field_size_limit(MAX_BYTES)  # as long as a row, which is looked at above
    texts = _CsvLines(stream)
    reader = csv.reader(texts, strict=True)
    while True:
        texts.begin()
        text = ""
        cells: list[str] | Malformed
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = f"the row is not CSV: {error}"
            if texts.open():  # what is within the quotes must not be taken for rows
                where = "a quote is left open, so nobody can tell where it ends"
                raise Broken(texts.first, f"{problem}; {where}") from error
            cells = Malformed(problem)
            text = texts.shown()
        else:
            if texts.fault:
                cells = texts.fault
                text = texts.shown()
        if cells:
            yield Record(texts.first, text, cells, texts.size)
