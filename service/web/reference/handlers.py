"""Serves the OpenAPI document and the page that shows it, with the documents for clients.

The page loads nothing from other hosts, and its Content-Security-Policy allows no inline scripts or
styles.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from string import Template

from aiohttp import web

from service.errors import OperatorError
from service.web.compression import Content
from service.web.reference.document import Json
from service.web.reference.documents import DOCS, DOCUMENTS, render_document
from service.web.responses import cacheable_response, encode_json, make_content

FOLDER = Path(__file__).parent / "page"
# The files that the page loads, and the clients to copy, with their Content-Type.
FILES = {
    "reference.css": "text/css; charset=utf-8",
    "reference.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml; charset=utf-8",
    "movies.mjs": "text/plain; charset=utf-8",
    "movies.py": "text/plain; charset=utf-8",
}
CONTENTS = Template(
    '        <h2><a href="#$id">$title</a></h2>\n        <ul>\n$links\n        </ul>'
)
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class Reference:
    """The handlers of /v1/openapi.json and /v1/docs.

    `make_document`: returns the document in which this year is the latest of a new movie. Raises
    `OperatorError` if a file of the page is missing.
    """

    def __init__(self, make_document: Callable[[int], Json]) -> None:
        # Each is compressed once.
        try:
            self._files = {
                path.name: make_content(path.read_bytes(), FILES[path.name])
                for path in (*FOLDER.iterdir(), *(DOCS.parent / "clients").iterdir())
                if path.name in FILES
            }
            self._page = make_content(_render_page(), "text/html; charset=utf-8", PAGE_HEADERS)
        except OSError as error:  # a deployment without docs/ or clients/
            raise OperatorError(f"{error.filename}: cannot be read: {error.strerror}") from error
        self.make_document = make_document
        self._content = lru_cache(maxsize=1)(self._encode_document)  # of this year

    async def document(self, request: web.Request) -> web.StreamResponse:
        """200 and the OpenAPI document."""
        return cacheable_response(request, self._content(datetime.now(UTC).year))

    def _encode_document(self, year: int) -> Content:
        return make_content(encode_json(self.make_document(year)))

    async def page(self, request: web.Request) -> web.StreamResponse:
        """200 and the page."""
        return cacheable_response(request, self._page)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """200 and a file that the page loads."""
        name = request.match_info["file"]
        if name not in self._files:
            raise web.HTTPNotFound
        return cacheable_response(request, self._files[name])


def _render_page() -> bytes:
    """Return the page; the documents are on it without JavaScript."""
    page, document = (
        Template((FOLDER / f"{name}.html").read_text("utf-8")) for name in ("reference", "document")
    )
    documents = [render_document(name) for name in DOCUMENTS]
    return page.substitute(
        documents="\n".join(map(document.substitute, documents)),
        contents="\n".join(map(CONTENTS.substitute, documents)),
    ).encode()
