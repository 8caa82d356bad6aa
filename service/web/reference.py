"""Serves the OpenAPI document and the page that shows it, with the documents for clients.

The page loads nothing from other hosts, and its Content-Security-Policy allows no inline scripts or
styles.
"""

import re
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from string import Template

from aiohttp import web
from markdown_it import MarkdownIt

from service.errors import OperatorError
from service.web.describe import (
    IF_NONE_MATCH,
    STRING,
    describe_json,
    field,
    make_schema,
    parameter,
    response,
)
from service.web.responses import (
    Content,
    cacheable_response,
    encode_json,
    json_response,
    make_content,
)
from service.web.route import Json, Operation, Route, Scope

PAGE_FOLDER = Path(__file__).parent / "reference_page"
DOCS = Path(__file__).parents[2] / "docs"
CLIENTS_FOLDER = DOCS.parent / "clients"
PROBLEMS = "problems"  # the document to whose sections the types of problems lead
DOCUMENTS = tuple(f"clients/{name}.md" for name in ("quick-start", "guides", "contract", PROBLEMS))
STEMS = {Path(name).stem for name in DOCUMENTS}
MARKDOWN = MarkdownIt("commonmark").enable("table")
LINK = Template('<li><a href="#$id"><span>$title</span></a></li>')
# The files that the page loads, and the clients to copy, with their Content-Type.
PAGE_FILES = {
    "reference.css": "text/css; charset=utf-8",
    "reference.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml; charset=utf-8",
}
CLIENT_FILES = dict.fromkeys(("movies.mjs", "movies.py"), "text/plain; charset=utf-8")
CONTENTS = Template('<h2><a href="#$id">$title</a></h2>\n<ul>\n$links\n</ul>')
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
INDEX = {"api": "/v1/movies", "reference": "/v1/docs", "openapi": "/v1/openapi.json"}
ApiIndex = make_schema(  # generators need the name `Index` for themselves
    "ApiIndex",
    api=field("the path of the movies", INDEX["api"]),
    reference=field("the path of the reference page", INDEX["reference"]),
    openapi=field("the path of the OpenAPI document", INDEX["openapi"]),
)
FILES = PAGE_FILES | CLIENT_FILES
FILE = parameter("file", "path", "The name of the file.", enum=sorted(FILES))
# Some generators take a file of the first type for bytes, unless it is text/plain.
FILE_TYPES = sorted({kind.partition(";")[0] for kind in FILES.values()}, reverse=True)
DOCUMENT = {"type": "object", "additionalProperties": True, "description": "An OpenAPI document."}
SHOW_INDEX = Operation(
    "show_index",
    "Find the API and its reference",
    "The paths of the movies, the reference page and the OpenAPI document.",
    describe_json("The paths.", ApiIndex),
    tag="Reference",
)
SHOW_DOCUMENT = Operation(
    "show_document",
    "Get this API in OpenAPI 3.1",
    "For tools such as client generators, gateways and tests.",
    response("The document.", ("ETag",), {"application/json": {"schema": DOCUMENT}}),
    (IF_NONE_MATCH,),
    tag="Reference",
)
SHOW_PAGE = Operation(
    "show_page",
    "Show the reference page",
    "Shows the document to people, with a form to send each request.",
    response("The page.", ("ETag",), {"text/html": {"schema": STRING}}),
    (IF_NONE_MATCH,),
    tag="Reference",
)
SHOW_FILE = Operation(
    "show_file",
    "Get a file of the reference page",
    "Its style sheet, script or icon, or a client to copy.",
    response("The file.", ("ETag",), {key: {"schema": STRING} for key in FILE_TYPES}),
    (FILE, IF_NONE_MATCH),
    tag="Reference",
)


async def show_index(_: web.Request) -> web.StreamResponse:
    """200; does not use the database."""
    return json_response(INDEX)


class Reference:
    """The handlers of /v1/openapi.json and below /v1/docs; `OperatorError` without their files."""

    def __init__(self, make_document: Callable[[], Json]) -> None:
        self._files, self._page = read_contents()
        self._get_document = cache(lambda: make_content(encode_json(make_document())))

    async def document(self, request: web.Request) -> web.StreamResponse:
        """200 and the OpenAPI document."""
        return cacheable_response(request, self._get_document())

    async def page(self, request: web.Request) -> web.StreamResponse:
        """200 and the page."""
        return cacheable_response(request, self._page)

    async def file(self, request: web.Request) -> web.StreamResponse:
        """200 and a file that the page loads."""
        name = request.match_info["file"]
        if name not in self._files:
            raise web.HTTPNotFound
        return cacheable_response(request, self._files[name])


def make_routes(reference: Reference) -> list[Route]:
    """Return the routes."""
    root = SHOW_INDEX._replace(name="show_root_index")
    return [
        Route("GET", "/", show_index, Scope.NONE, root),
        Route("GET", "/v1", show_index, Scope.NONE, SHOW_INDEX),
        Route("GET", "/v1/openapi.json", reference.document, Scope.NONE, SHOW_DOCUMENT),
        Route("GET", "/v1/docs", reference.page, Scope.NONE, SHOW_PAGE),
        Route("GET", "/v1/docs/{file}", reference.file, Scope.NONE, SHOW_FILE),
    ]


@cache  # the workers of gunicorn get what their master has read
def read_contents() -> tuple[dict[str, Content], Content]:
    """Return the files by name, and the page."""
    try:
        files = {
            name: make_content((folder / name).read_bytes(), kind)
            for folder, kinds in ((PAGE_FOLDER, PAGE_FILES), (CLIENTS_FOLDER, CLIENT_FILES))
            for name, kind in kinds.items()
        }
        page, document = (
            Template((PAGE_FOLDER / f"{name}.html").read_text("utf-8"))
            for name in ("reference", "document")
        )
        documents = [render_document(name) for name in DOCUMENTS]
    except OSError as error:  # a deployment without docs/ or clients/
        raise OperatorError(f"{error.filename}: cannot be read: {error.strerror}") from error
    text = page.substitute(  # the documents are on it without JavaScript
        documents="\n".join(map(document.substitute, documents)),
        contents="\n".join(map(CONTENTS.substitute, documents)),
    )
    return files, make_content(text.encode(), "text/html; charset=utf-8", PAGE_HEADERS)


def render_document(name: str) -> dict[str, str]:
    """Render a file of `docs/`: its `id`, `title`, `content` and the `links` to its sections.

    Its title becomes a heading of the second level. The ids of all headings begin with its `id`,
    except those of problems, which are their slugs.
    """
    stem = Path(name).stem
    tokens = MARKDOWN.parse(re.sub("(?s)<!--.*?-->", "", (DOCS / name).read_text("utf-8")))
    title, links = stem, list[str]()
    for opening, inline, closing in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if opening.type == "heading_open":
            text = escape(inline.content.replace("`", ""))
            fragment = re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")  # as on GitHub
            level = opening.tag
            own = fragment if stem == PROBLEMS else f"{stem}-{fragment}"
            if level == "h1":
                title, own = text, stem
            elif level == "h2":
                links.append(LINK.substitute(id=own, title=text))
            opening.attrSet("id", own)
            opening.tag = closing.tag = f"h{int(level[1]) + 1}"
    for each in (child for token in tokens for child in token.children or ()):
        if each.type == "link_open":
            each.attrs = _direct_link(str(each.attrs["href"]), stem)
    content = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    return {"id": stem, "title": title, "content": content, "links": "\n".join(links)}


def _direct_link(href: str, stem: str) -> dict[str, str | int | float]:
    """Return the attributes of a link: to a section of the page or outside, none to other files."""
    if re.match("https?:|/", href):
        return {"href": href}
    path, _, fragment = href.partition("#")
    target = Path(path).stem if path else stem
    if target in STEMS:
        own = fragment if target == PROBLEMS else f"{target}-{fragment}"
        return {"href": f"#{own}" if fragment else f"#{target}"}
    return {"href": f"docs/{Path(path).name}"} if "/clients/" in path else {}
