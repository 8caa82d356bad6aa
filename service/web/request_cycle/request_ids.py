"""The id of a request, which is in its response and in every log line about it."""

import itertools
import re
import secrets

from aiohttp import web
from multidict import istr

REQUEST_ID = web.RequestKey("request_id", str)
HEADER = istr("X-Request-Id")
WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

_PROCESS = secrets.token_hex(8)
_NUMBERS = itertools.count(1)


def assign_request_id(request: web.BaseRequest) -> str:
    """Set `request[REQUEST_ID]`: the client's `X-Request-Id` if it is well-formed, or a new id.

    A new id is unique among processes: a random part, drawn once per process, and a number.
    """
    given = request.headers.get(HEADER)
    if given and WELL_FORMED.fullmatch(given):
        request_id = given
    else:
        request_id = f"{_PROCESS}-{next(_NUMBERS):x}"
    request[REQUEST_ID] = request_id
    return request_id
