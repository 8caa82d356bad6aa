"""Compresses large responses for clients that accept it (RFC 9110, 8.4 and 12.5.3).

Lists and documents are compressed (`LargeResponse`). A single movie is small, and its entity tag
must stay strong, because `If-Match` compares strong tags only (RFC 9110, 13.1.1).
"""

import re
import zlib

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

MIN_BYTES = 1400  # less fits into one Ethernet packet with its headers, compressed or not
GZIP_WBITS = 16 + zlib.MAX_WBITS  # https://docs.python.org/3/library/zlib.html#zlib.compressobj

_TOKEN = "[!#$%&'*+.^_`|~0-9a-z-]+"  # noqa: S105 - of RFC 9110, 5.6.2
_PARAMETER = rf'[ \t]*;[ \t]*(?!q=){_TOKEN}=(?:{_TOKEN}|"[^"]*")'  # only media types have some
_ACCEPTED = re.compile(
    rf"[ \t]*({_TOKEN}(/{_TOKEN})?)(?(2)(?:{_PARAMETER})*)[ \t]*"
    r"(?:;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*)?"
)


class LargeResponse(web.Response):
    """A response that is compressed if that is worth it and its client prefers it."""

    vary = "Accept-Encoding"  # or a list that has it, too

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Compress the body, set the headers that go with it, and send the head.

        A response to HEAD still has the body of GET here, so both get the same headers.
        """
        self.headers.add("Vary", self.vary)
        body = self.body
        accepted = ",".join(request.headers.getall("Accept-Encoding", ()))
        if isinstance(body, bytes) and len(body) >= MIN_BYTES and prefers_gzip(accepted):
            compressor = zlib.compressobj(wbits=GZIP_WBITS)
            self.body = compressor.compress(body) + compressor.flush()
            self.headers["Content-Encoding"] = "gzip"
        return await super().prepare(request)


def prefers_gzip(accepted: str) -> bool:
    """Return whether `Accept-Encoding` does not prefer an uncompressed response to gzip.

    A client that refuses everything gets no compression, and no 406 (RFC 9110, 12.1 allows that).
    """
    qualities = parse_qualities(accepted)
    others = qualities.get("*", 0)
    quality = max(qualities.get("gzip", others), qualities.get("x-gzip", 0))  # RFC 9110, 8.4.1.3
    return quality > 0 and quality >= qualities.get("identity", others)


def parse_qualities(accepted: str) -> dict[str, float]:
    """Return the quality of each name (RFC 9110, 12.4.2); malformed elements are ignored."""
    matches = [_ACCEPTED.fullmatch(element) for element in accepted.lower().split(",")]
    return {match[1]: float(match[3] or 1) for match in matches if match}
