"""The reference: the OpenAPI document, and the page that renders it.

Everything is made once, at the start, and answered from memory. The page loads nothing from
elsewhere, and its Content-Security-Policy allows nothing inline.
"""

import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from service.web import problems
from service.web.conditions import unless_known
from service.web.problems import Problem
from service.web.request_cycle.compression import LargeResponse, gzip
from service.web.responses import PRETTY

FOLDER = Path(__file__).parent / "page"
# What the page is made of, and as what it is served.
FILES = {
    "reference.css": "text/css",
    "reference.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    # Kept, but asked for each time: a deploy shows at once, and costs a 304 else.
    "Cache-Control": "no-cache",
}
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class Asset(NamedTuple):
    """What is answered, as what, and its entity tag (RFC 9110, 8.8.3) without quotes."""

    body: bytes
    gzipped: bytes
    content_type: str
    tag: str
    headers: Mapping[str, str]


class Reference:
    """The handlers of /v1/openapi.json and /v1/docs."""

    def __init__(self) -> None:
        self._files = {
            name: _asset((FOLDER / name).read_bytes(), kind) for name, kind in FILES.items()
        }
        self._page = _asset(_page(), "text/html", PAGE_HEADERS)
        self._document = _asset(b"", "application/json")

    def publish(self, document: Mapping[str, Any]) -> None:
        """Serve this OpenAPI document."""
        self._document = _asset(orjson.dumps(document, option=PRETTY), "application/json")

    async def document(self, request: web.Request) -> web.Response:
        """200 and the OpenAPI document."""
        return _answer(request, self._document)

    async def page(self, request: web.Request) -> web.Response:
        """200 and the page."""
        return _answer(request, self._page)

    async def file(self, request: web.Request) -> web.Response:
        """200 and what the page is made of."""
        asset = self._files.get(request.match_info["file"])
        if not asset:
            raise web.HTTPNotFound
        return _answer(request, asset)


def _asset(body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> Asset:
    tag = hashlib.sha256(body).hexdigest()[:16]
    return Asset(body, gzip(body), content_type, tag, {**HEADERS, **(headers or {})})


def _answer(request: web.Request, asset: Asset) -> web.Response:
    response = LargeResponse(
        body=asset.body,
        content_type=asset.content_type,
        charset=None if asset.content_type == "application/json" else "utf-8",
        headers=asset.headers,
    )
    response.gzipped = asset.gzipped
    response.etag = asset.tag
    return unless_known(request, response)


def _page() -> bytes:
    """Return the page with a section for every kind of problem: without JavaScript too."""
    kinds = sorted(problems.KINDS.values(), key=lambda kind: kind.status)
    page = Template((FOLDER / "reference.html").read_text("utf-8"))
    return page.substitute(
        links="\n".join(_link(kind) for kind in kinds),
        problems="\n".join(_section(kind) for kind in kinds),
    ).encode()


def _link(kind: Problem) -> str:
    return (
        f'        <li><a href="#{kind.slug}">{_badge(kind)}'
        f" <span>{html.escape(kind.title)}</span></a></li>"
    )


def _badge(kind: Problem) -> str:
    return f'<span class="status s{kind.status // 100}">{kind.status}</span>'


def _section(kind: Problem) -> str:
    example = json.dumps(problems.example(kind), indent=2, ensure_ascii=False)
    return f"""\
      <section class="problem" id="{kind.slug}" aria-labelledby="{kind.slug}-title">
        <h3 id="{kind.slug}-title">
          {_badge(kind)} {html.escape(kind.title)}
          <a class="anchor" href="#{kind.slug}" aria-label="Link to {kind.slug}">#</a>
        </h3>
        <dl>
          <dt>What happened</dt><dd>{_prose(kind.happened)}</dd>
          <dt>How to mend it</dt><dd>{_prose(kind.mend)}</dd>
        </dl>
        <details>
          <summary>Example</summary>
          <pre tabindex="0" role="group" aria-label="Example">{html.escape(example)}</pre>
        </details>
      </section>"""


def _prose(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))
