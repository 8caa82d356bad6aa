"""Compresses large answers for clients that want it (RFC 9110, 8.4 and 12.5.3).

Only what handlers answer with `LargeResponse`: lists and documents. A movie alone is small, and its
entity tag has to stay strong, or `If-Match` would never hold (RFC 9110, 13.1.1).
"""

import asyncio
import re
import zlib

from aiohttp import web

# bytes; less fits one packet of Ethernet with its headers, compressed or not.
LEAST = 1400
# zlib's; a page of 100 movies (32 kB) takes 0.2 ms and comes to a seventh. 9 takes three times as
# long and saves a twentieth more.
LEVEL = 6
LONGEST = 8190  # characters of all lines of Accept-Encoding; what is longer counts as not there
# bytes; what takes longer than about a millisecond leaves the event loop to others.
IN_A_THREAD = 200_000
GZIP_FORMAT = 16 + zlib.MAX_WBITS  # https://docs.python.org/3/library/zlib.html#zlib.compressobj

_CODING = re.compile(
    r"[ \t]*([!#$%&'*+.^_`|~0-9a-z-]+)[ \t]*(?:;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*)?"
)


class LargeResponse(web.Response):
    """An answer with a body that may be worth compressing; `gzipped`, if that is done already."""

    gzipped: bytes | None = None


async def compress(request: web.BaseRequest, response: LargeResponse) -> None:
    """Compress the body if the client prefers that, and set the headers that follow from it.

    HEAD comes by here with the body of GET, and so gets the same headers; so does a 304.
    """
    headers = response.headers
    headers.add("Vary", "Accept-Encoding")
    if tag := headers.get("ETag"):
        headers["ETag"] = weakened(tag)
    body = response.body
    if not isinstance(body, bytes) or len(body) < LEAST:
        return
    accepted = ",".join(request.headers.getall("Accept-Encoding", ()))
    if len(accepted) > LONGEST or not prefers_gzip(accepted):
        return
    gzipped = response.gzipped
    if gzipped is None:
        inline = len(body) < IN_A_THREAD
        gzipped = gzip(body) if inline else await asyncio.to_thread(gzip, body)
    response.body = gzipped
    headers["Content-Encoding"] = "gzip"


def weakened(tag: str) -> str:
    """Return the entity tag for an answer that goes by several encodings, whichever it has now.

    A strong one would promise the same bytes (RFC 9110, 8.8.1 and 8.8.3.3), and one for each
    encoding would not match once the client's `Accept-Encoding` has changed. Lists and documents
    know If-None-Match alone, which takes weak ones.
    """
    return tag if tag.startswith("W/") else f"W/{tag}"


def gzip(body: bytes) -> bytes:
    """Compress, without a time in it: the same bytes give the same."""
    compressor = zlib.compressobj(LEVEL, wbits=GZIP_FORMAT)
    return compressor.compress(body) + compressor.flush()


def prefers_gzip(accepted: str) -> bool:
    """Whether `Accept-Encoding` has gzip, at least as much as no compression at all.

    Whoever refuses everything gets it uncompressed, and no 406 (RFC 9110, 12.1 leaves the choice).
    What is not of the form of the header counts as not there.
    """
    qualities: dict[str, float] = {}
    for element in accepted.lower().split(","):
        if match := _CODING.fullmatch(element):
            qualities[match[1]] = float(match[2] or 1)
    others = qualities.get("*", 0)
    quality = max(qualities.get("gzip", others), qualities.get("x-gzip", 0))  # RFC 9110, 8.4.1.3
    return quality > 0 and quality >= qualities.get("identity", others)
