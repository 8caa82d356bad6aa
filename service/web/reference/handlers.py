"""Serves the OpenAPI document and the page that shows it.

The page loads nothing from other hosts, and its Content-Security-Policy allows no inline scripts or
styles.
"""

import html
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from aiohttp import web

from service.web.problems import BY_SLUG, Problem, example_json
from service.web.reference.document import BODIES
from service.web.responses import cacheable_response, encode_json, make_content

FOLDER = Path(__file__).parent / "page"
# The files that the page loads, and their Content-Type.
FILES = {
    "reference.css": "text/css; charset=utf-8",
    "reference.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml; charset=utf-8",
}
LINK = Template(
    '        <li><a href="#$slug"><span class="status s$class">$status</span>'
    " <span>$title</span></a></li>"
)
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class Reference:
    """The handlers of /v1/openapi.json and /v1/docs."""

    def __init__(self) -> None:
        self._files = {name: (FOLDER / name).read_bytes() for name in FILES}
        self._page = _render_page()
        self._document: Mapping[str, Any] = {}
        self._encoded: dict[int, bytes] = {}  # by the year in it

    def publish(self, document: Mapping[str, Any]) -> None:
        """Serve this OpenAPI document."""
        self._document = document

    async def document(self, request: web.Request) -> web.StreamResponse:
        """200 and the OpenAPI document, in which this year is the latest of a new movie."""
        year = datetime.now(UTC).year
        if year not in self._encoded:
            for key in BODIES:  # not in responses: a client may read them next year
                self._document["components"]["schemas"][key]["properties"]["year"]["maximum"] = year
            self._encoded = {year: encode_json(self._document)}
        return cacheable_response(request, make_content(self._encoded[year]))

    async def page(self, request: web.Request) -> web.StreamResponse:
        """200 and the page."""
        content = make_content(self._page, "text/html; charset=utf-8", PAGE_HEADERS)
        return cacheable_response(request, content)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """200 and a file that the page loads."""
        name = request.match_info["file"]
        if name not in self._files:
            raise web.HTTPNotFound
        return cacheable_response(request, make_content(self._files[name], FILES[name]))


def _render_page() -> bytes:
    """Return the page; it has a section for every kind of problem, without JavaScript."""
    page, section = (
        Template((FOLDER / name).read_text("utf-8")) for name in ("reference.html", "problem.html")
    )
    by_status = sorted(BY_SLUG.values(), key=lambda problem: problem.status)
    problems = [_render_texts(problem) for problem in by_status]
    return page.substitute(
        links="\n".join(LINK.substitute(problem) for problem in problems),
        problems="".join(section.substitute(problem) for problem in problems).rstrip(),
    ).encode()


def _render_texts(problem: Problem) -> dict[str, str]:
    """Return what the templates show of a problem, in HTML."""
    example = json.dumps(example_json(problem), indent=2, ensure_ascii=False)
    texts = {**problem._asdict(), "example": example, "class": problem.status // 100}
    return {
        name: re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(str(text)))
        for name, text in texts.items()
    }
