"""Serves the OpenAPI document and the page that shows it.

The page loads nothing from other hosts, and its
Content-Security-Policy allows no inline scripts or styles.
"""

import html
import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Any

from aiohttp import web

from service.web.problems import BY_SLUG, Problem
from service.web.reference.problem_texts import PROBLEM_TEXTS, example_json
from service.web.responses import cacheable_response, encode_json

FOLDER = Path(__file__).parent / "page"
# The files that the page loads, and their Content-Type.
FILES = {
    "reference.css": "text/css; charset=utf-8",
    "reference.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml; charset=utf-8",
}
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
        self._build_document: Callable[[], Mapping[str, Any]] = dict

    def publish(self, build_document: Callable[[], Mapping[str, Any]]) -> None:
        """Serve the OpenAPI document that `build_document` returns; it is called when needed."""
        self._build_document = build_document

    @cached_property
    def _document(self) -> bytes:
        return encode_json(self._build_document())

    async def document(self, request: web.Request) -> web.Response:
        """200 and the OpenAPI document."""
        return cacheable_response(request, self._document)

    async def page(self, request: web.Request) -> web.Response:
        """200 and the page."""
        return cacheable_response(request, self._page, "text/html; charset=utf-8", PAGE_HEADERS)

    async def file(self, request: web.Request) -> web.Response:
        """200 and a file that the page loads."""
        name = request.match_info["file"]
        if name not in self._files:
            raise web.HTTPNotFound
        return cacheable_response(request, self._files[name], FILES[name])


def _render_page() -> bytes:
    """Return the page with a section for every kind of problem; these need no JavaScript."""
    problems = sorted(BY_SLUG.values(), key=lambda problem: problem.status)
    page = Template((FOLDER / "reference.html").read_text("utf-8"))
    return page.substitute(
        links="\n".join(_render_link(problem) for problem in problems),
        problems="\n".join(_render_section(problem) for problem in problems),
    ).encode()


def _render_link(problem: Problem) -> str:
    return (
        f'        <li><a href="#{problem.slug}">{_render_status(problem)}'
        f" <span>{html.escape(problem.title)}</span></a></li>"
    )


def _render_status(problem: Problem) -> str:
    return f'<span class="status s{problem.status // 100}">{problem.status}</span>'


def _render_section(problem: Problem) -> str:
    slug = problem.slug
    text = PROBLEM_TEXTS[slug]
    example = json.dumps(example_json(slug), indent=2, ensure_ascii=False)
    return f"""\
      <section class="problem" id="{slug}" aria-labelledby="{slug}-title">
        <h3 id="{slug}-title">
          {_render_status(problem)} {html.escape(problem.title)}
          <a class="anchor" href="#{slug}" aria-label="Link to {slug}">#</a>
        </h3>
        <dl>
          <dt>What happened</dt><dd>{_render_text(text.what_happened)}</dd>
          <dt>How to fix it</dt><dd>{_render_text(text.how_to_fix)}</dd>
        </dl>
        <details>
          <summary>Example</summary>
          <pre tabindex="0" role="group" aria-label="Example">{html.escape(example)}</pre>
        </details>
      </section>"""


def _render_text(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))
