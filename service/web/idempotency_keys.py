"""Parses the Idempotency-Key header.

The draft defines it as a structured field (RFC 9651, 3.3.3): a string in double quotes. Most
clients send it without quotes. Both forms are accepted: `"a"` and `a` are the same key.
https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
"""

import re

from aiohttp import web

from service.errors import WrongKey

HEADER_NAME = "Idempotency-Key"
# In quotes, where `\` precedes a quote or another `\`; or bare, without a quote at its start.
KEY_PATTERN = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-~](?:[ -~]{0,253}[!-~])?)')


def parse_key(request: web.Request) -> str | None:
    """Return the key without its quotes, None if it was not sent; `WrongKey`."""
    lines = request.headers.getall(HEADER_NAME, None)
    if lines is None:
        return None
    match = KEY_PATTERN.fullmatch(lines[0]) if len(lines) == 1 else None
    if not match:
        raise WrongKey
    quoted, bare = match.groups()
    return re.sub(r"\\(.)", r"\1", quoted) if quoted else bare
