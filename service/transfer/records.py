"""What of a row goes into the table: a movie by the API's own rules, and what an export adds."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from marshmallow import ValidationError

from service.catalogue.rules import DIGITS, JSON, read_movie
from service.errors import Failure, Invalid, Malformed

# Ids beyond are for new movies: one at the end of bigint would leave none.
LARGEST_ID = 10**DIGITS - 1
LARGEST_VERSION = 2**31 - 1  # an integer of PostgreSQL
# https://www.rfc-editor.org/rfc/rfc3339#section-5.6, as exact as PostgreSQL
MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
)


class Moment(JSON):
    """A time, as RFC 3339 has it; in UTC."""

    def __init__(self) -> None:
        super().__init__(str, 'a string like "2026-01-05T09:00:00Z"', lambda _: None, {})

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> datetime:
        text = super()._deserialize(value, attr, data, **kwargs)
        try:
            if MOMENT.fullmatch(text):
                return datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise Malformed(f'"{attr}" must be a time of RFC 3339, like "2026-01-05T09:00:00Z"')


def read_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `FIELDS`, or of `COLUMNS` where the row has the catalogue's own fields.

    Raises `Malformed` or `Invalid`.
    """
    if _OWN.keys().isdisjoint(row):
        return read_movie(row)
    if missing := [name for name in _OWN if name not in row]:
        raise Malformed(
            f"{', '.join(missing)} missing: expected all four of {', '.join(_OWN)}, or none"
        )
    failures: list[Failure] = []
    values: dict[str, Any] = {}
    for name, field in _OWN.items():
        try:
            values[name] = field.deserialize(row[name], name, row)
        except ValidationError as error:
            failures += [Failure(name, message) for message in error.messages]
    try:
        values |= read_movie({name: value for name, value in row.items() if name not in _OWN})
    except Invalid as error:
        failures += error.failures
    if failures:
        raise Invalid(failures)
    return values


def _at_most(most: int) -> Any:
    def check(value: int) -> None:
        if not 0 < value <= most:
            raise ValidationError(f"must be 1 to {most}")

    return check


_OWN: dict[str, JSON] = {
    "id": JSON(int, "an integer", _at_most(LARGEST_ID), {}),
    "version": JSON(int, "an integer", _at_most(LARGEST_VERSION), {}),
    "created_at": Moment(),
    "updated_at": Moment(),
}
