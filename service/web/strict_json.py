"""Reads one strict JSON object in UTF-8: a request body, or an imported row.

It refuses what RFC 8259 lets each parser decide: duplicate keys, NaN, huge numbers, a byte order
mark. It also refuses so many values that parsing them would block all other requests.
"""

import json
from collections import Counter
from typing import Any

from service.errors import Malformed, quote

MAX_BYTES = 1_048_576  # of a request body or an imported row
# Limits of the values in it: 1 MB of `{},` takes 150 ms to parse, these take 5 ms. A movie has 6
# colons and brackets and 7 commas, and its title and genres may contain up to 1,000 more.
MAX_COLONS_AND_BRACKETS = 2000
MAX_COMMAS = 20_000
MAX_INTEGER_DIGITS = 500  # 1 MB of integers of 4,300 digits, Python's limit, takes 60 ms to read


def parse_object(data: bytes, called: str = "the body") -> dict[str, object]:
    """Parse one JSON object; raises `Malformed`, which says what is wrong and where."""
    if not data.strip():
        raise Malformed(f"{called} is empty; expected one JSON object")
    if data.startswith(b"\xef\xbb\xbf"):
        raise Malformed(f"{called} starts with a byte order mark; expected UTF-8 without one")
    try:
        text = data.decode("utf-8")
        if len(data) > MAX_COLONS_AND_BRACKETS:
            _refuse_crowd(data, called)
        value = _decode(text)
    except UnicodeDecodeError as error:
        raise Malformed(f"{called} is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        what = "expected nothing more" if error.msg == "Extra data" else error.msg.lower()
        raise Malformed(
            f"{called} is not one JSON object: {what}, at character {error.pos + 1}"
        ) from error
    except RecursionError as error:
        raise Malformed(f"{called} is nested too deep") from error
    except ValueError as error:
        raise Malformed(f"{called} has a number that is too big") from error
    if not isinstance(value, dict):
        raise Malformed(f"{called} must be one JSON object")
    return value


def _refuse_crowd(data: bytes, called: str) -> None:
    """Refuse too many values before they are parsed."""
    colons_and_brackets = sum(map(data.count, (b":", b"{", b"[")))
    if colons_and_brackets > MAX_COLONS_AND_BRACKETS or data.count(b",") > MAX_COMMAS:
        raise Malformed(
            f"{called} is nested too deep or has too many values: expected at most"
            f" {MAX_COLONS_AND_BRACKETS} colons and brackets and {MAX_COMMAS} commas"
        )


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise Malformed(f"the field {quote(name)} is repeated")
    return members


def _refuse_constant(name: str) -> object:
    raise Malformed(f"{name} is not a JSON number")


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise ValueError("too many digits")
    return int(digits)


_decode = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates,
    parse_constant=_refuse_constant,
    parse_int=_parse_integer,
).decode
