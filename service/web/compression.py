"""Compresses large responses for clients that accept it (RFC 9110, 8.4 and 12.5.3).

Lists and documents are compressed (`LargeResponse`). A single movie is small, and its entity tag
must stay strong, because `If-Match` compares strong tags only (RFC 9110, 13.1.1).
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from aiohttp import hdrs, web

from service.web.direct_response import DirectResponse

MIN_BYTES = 1400  # less fits into one Ethernet packet with its headers, compressed or not
GZIP_WBITS = 16 + zlib.MAX_WBITS  # https://docs.python.org/3/library/zlib.html#zlib.compress

_TOKEN = "[!#$%&'*+.^_`|~0-9a-z-]+"  # noqa: S105 - of RFC 9110, 5.6.2
_PARAMETER = rf'[ \t]*;[ \t]*(?!q=){_TOKEN}=(?:{_TOKEN}|"[^"]*")'  # only media types have some
_ACCEPTED = re.compile(
    rf"[ \t]*({_TOKEN}(/{_TOKEN})?)(?(2)(?:{_PARAMETER})*)[ \t]*"
    r"(?:;[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*)?"
)


@dataclass
class Content:
    """A body, and the headers that describe it; requests that share it compress it once."""

    body: bytes
    headers: Mapping[str, str]

    @cached_property
    def gzipped(self) -> bytes:
        """The body, compressed."""
        return zlib.compress(self.body, wbits=GZIP_WBITS)


NOTHING = Content(b"", {})


class LargeResponse(DirectResponse):
    """A response that is compressed if that is worth it and its client prefers it."""

    def __init__(self, content: Content, headers: Mapping[str, str]) -> None:
        super().__init__(content.body, {"Vary": "Accept-Encoding", **content.headers, **headers})
        self._content = content

    async def prepare(self, request: web.BaseRequest) -> None:
        """Compress the body, unless it was, and send it.

        The response to HEAD is compressed, too, so that it has the headers of GET.
        """
        accepted = request.headers.getall(hdrs.ACCEPT_ENCODING, ())
        if accepted and len(self.body) >= MIN_BYTES and prefers_gzip(",".join(accepted)):
            self.body = self._content.gzipped
            self.own_headers = {**self.own_headers, "Content-Encoding": "gzip"}
        await super().prepare(request)
        self._content = NOTHING  # as DirectResponse frees its body


def prefers_gzip(accepted: str) -> bool:
    """Return whether `Accept-Encoding` prefers gzip, or has it at the quality of no compression."""
    qualities = parse_qualities(accepted)
    others = qualities.get("*", 0)
    quality = max(qualities.get("gzip", others), qualities.get("x-gzip", 0))  # RFC 9110, 8.4.1.3
    return quality > 0 and quality >= qualities.get("identity", others)


def parse_qualities(accepted: str) -> dict[str, float]:
    """Return the quality of each name (RFC 9110, 12.4.2); malformed elements are ignored."""
    matches = [_ACCEPTED.fullmatch(element) for element in accepted.lower().split(",")]
    return {match[1]: float(match[3] or 1) for match in matches if match}
