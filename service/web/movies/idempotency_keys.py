"""Reads the Idempotency-Key header.

The draft has it as a structured field (RFC 9651, 3.3.3): a string in double quotes. Most clients
send it bare. Both are taken, and are the same key: `"a"` and `a`.
https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
"""

import re

from aiohttp import web

from service.errors import WrongKey

NAME = "Idempotency-Key"
# In quotes, where `\` goes before a quote or another `\`; or bare, without a quote at its start.
KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-~](?:[ -~]{0,253}[!-~])?)')

EXPECTED = (
    "expected one Idempotency-Key of 1 to 255 printable ASCII characters,"
    ' which may be in double quotes: abc or "abc"'
)


def read_key(request: web.Request) -> str | None:
    """Return the key without its quotes, None where there is none; `WrongKey`."""
    given = request.headers.getall(NAME, None)
    if given is None:
        return None
    match = KEY.fullmatch(given[0]) if len(given) == 1 else None
    if not match:
        raise WrongKey(EXPECTED)
    quoted, bare = match.groups()
    return re.sub(r"\\(.)", r"\1", quoted) if quoted else bare
