"""The id of a request, which is in its response and in every log line about it."""

import itertools
import re
import secrets

from aiohttp import web
from multidict import istr

REQUEST_ID = istr("X-Request-Id")
WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

_KEY = web.RequestKey("request_id", str)
_PROCESS = secrets.token_hex(8)
_NUMBERS = itertools.count(1)


def get_request_id(request: web.BaseRequest) -> str:
    """Return the client's `X-Request-Id` if it is well-formed, otherwise one of our own.

    Ours is unique among processes: a random part, drawn once per process, and a number.
    """
    request_id = request.get(_KEY)
    if request_id is None:
        given = request.headers.get(REQUEST_ID, "")
        request_id = given if WELL_FORMED.fullmatch(given) else f"{_PROCESS}-{next(_NUMBERS):x}"
        request[_KEY] = request_id
    return request_id
