"""Validate an imported row: the API's rules for a movie, plus the read-only fields of an export."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from marshmallow import Schema
from marshmallow.validate import Range

from service.catalogue.rules import MAX_DIGITS, MOVIE, JSONField, load_fields, read_movie
from service.errors import Malformed

MAX_ID = 10**MAX_DIGITS - 1  # ids beyond are left for new movies
MAX_VERSION = 2**31 - 1  # an integer of PostgreSQL
RANGE_ERROR = "must be {min} to {max}"
# https://www.rfc-editor.org/rfc/rfc3339#section-5.6, in microseconds like PostgreSQL
TIME_PATTERN = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def read_record(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `FIELDS`, or of `COLUMNS` if the row has the read-only fields.

    Raises `Malformed` or `Invalid`.
    """
    missing = [name for name in READ_ONLY if name not in row]
    if len(missing) == len(READ_ONLY):
        return read_movie(row)
    if missing:
        raise Malformed(
            f"{', '.join(missing)} missing: expected all four of {', '.join(READ_ONLY)}, or none"
        )
    return load_fields(RECORD, row)


def _parse_time(text: str) -> datetime:
    try:
        if TIME_PATTERN.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError('must be a time of RFC 3339, like "2026-01-05T09:00:00Z"')


TIME = JSONField(str, 'a string like "2026-01-05T09:00:00Z"', None, {}, _parse_time)
READ_ONLY = {
    "id": JSONField(int, "an integer", Range(1, MAX_ID, error=RANGE_ERROR), {}),
    "version": JSONField(int, "an integer", Range(1, MAX_VERSION, error=RANGE_ERROR), {}),
    "created_at": TIME,
    "updated_at": TIME,
}
RECORD = Schema.from_dict({**READ_ONLY, **MOVIE.fields})()
