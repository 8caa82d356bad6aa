"""Catalogue-Position: a client that sends what a write returned sees at least that write."""

import re

from aiohttp import web
from multidict import istr

from service.catalogue.rules import quote
from service.context import POSITION
from service.database import MAX_BIGINT
from service.errors import MalformedHeader

POSITION_HEADER = istr(POSITION)
POSITIONS = re.compile("[0-9]{1,19}(?:[ \t]*,[ \t]*[0-9]{1,19})*")


def parse_position(request: web.Request) -> int:
    """Return the highest position that was sent; raises `MalformedHeader`."""
    text = ",".join(request.headers.getall(POSITION_HEADER))
    if POSITIONS.fullmatch(text) and (highest := max(map(int, text.split(",")))) <= MAX_BIGINT:
        return highest
    what = f"{POSITION} must be a number from an earlier response, or several, separated by commas"
    raise MalformedHeader(f"{what}; found {quote(text)}")
