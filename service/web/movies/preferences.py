"""Parses the Prefer header (RFC 7240)."""

import re

from aiohttp import web

# With its parameters. A string that does not end takes the rest, so that this is linear.
PREFERENCE = re.compile(r'(?:"(?:[^"\\]|\\.)*+"?|[^",])++')


def prefers_lenient(request: web.Request) -> bool:
    """Whether the client prefers handling=lenient (4.4); the first `handling` counts (2)."""
    for preference in PREFERENCE.finditer(",".join(request.headers.getall("Prefer", ()))):
        name, _, value = preference[0].partition(";")[0].partition("=")
        if name.strip(" \t").lower() == "handling":
            return value.strip(' \t"').lower() == "lenient"
    return False
