"""Compresses large responses for clients that accept it (RFC 9110, 8.4 and 12.5.3).

Only a `LargeResponse`, which lists and documents are. A single movie is small, and its entity tag
must stay strong, because `If-Match` compares strong tags only (RFC 9110, 13.1.1).
"""

import asyncio
import re
import zlib

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

MIN_BYTES = 1400  # less fits into one Ethernet packet with its headers, compressed or not
# A page of 100 movies (32 kB) takes 0.2 ms and shrinks to a seventh. Level 9 takes three times as
# long and saves 5 % more.
GZIP_LEVEL = 6
MAX_HEADER_LENGTH = 8190  # characters of all Accept-Encoding lines; a longer one is ignored
THREAD_BYTES = 200_000  # more is compressed in a thread: it takes longer than about 1 ms
GZIP_WBITS = 16 + zlib.MAX_WBITS  # https://docs.python.org/3/library/zlib.html#zlib.compressobj

_CODING = re.compile(
    r"[ \t]*([!#$%&'*+.^_`|~0-9a-z-]+)[ \t]*(?:;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*)?"
)


class LargeResponse(web.Response):
    """A response that is compressed if that is worth it and its client prefers it."""

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Compress the body, set the headers that go with it, and send the head.

        A response to HEAD still has the body of GET here, so both get the same headers.
        """
        self.headers.add("Vary", "Accept-Encoding")
        if tag := self.headers.get("ETag"):
            self.headers["ETag"] = weaken_tag(tag)
        body = self.body
        accepted = ",".join(request.headers.getall("Accept-Encoding", ()))
        if isinstance(body, bytes) and len(body) >= MIN_BYTES and prefers_gzip(accepted):
            inline = len(body) < THREAD_BYTES
            self.body = gzip(body) if inline else await asyncio.to_thread(gzip, body)
            self.headers["Content-Encoding"] = "gzip"
        return await super().prepare(request)


def weaken_tag(tag: str) -> str:
    """Make an entity tag weak, as a response with several encodings needs.

    A strong tag promises the same bytes (RFC 9110, 8.8.1 and 8.8.3.3), and a tag for each encoding
    would no longer match when the client's `Accept-Encoding` changes. Lists and documents are only
    asked for with If-None-Match, which compares weak tags.
    """
    return tag if tag.startswith("W/") else f"W/{tag}"


def gzip(body: bytes) -> bytes:
    """Compress without a timestamp: the same input gives the same output."""
    compressor = zlib.compressobj(GZIP_LEVEL, wbits=GZIP_WBITS)
    return compressor.compress(body) + compressor.flush()


def prefers_gzip(accepted: str) -> bool:
    """Return whether `Accept-Encoding` prefers gzip to no compression, or likes both the same.

    A client that refuses everything gets no compression, and no 406 (RFC 9110, 12.1 allows that).
    Malformed elements are ignored.
    """
    if len(accepted) > MAX_HEADER_LENGTH:
        return False
    qualities: dict[str, float] = {}
    for element in accepted.lower().split(","):
        if match := _CODING.fullmatch(element):
            qualities[match[1]] = float(match[2] or 1)
    others = qualities.get("*", 0)
    quality = max(qualities.get("gzip", others), qualities.get("x-gzip", 0))  # RFC 9110, 8.4.1.3
    return quality > 0 and quality >= qualities.get("identity", others)
