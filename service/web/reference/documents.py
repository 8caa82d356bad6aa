"""Renders the documents for clients, which are Markdown files in docs/clients/, for the page."""

import re
from html import escape
from pathlib import Path
from string import Template

from markdown_it import MarkdownIt

DOCS = Path(__file__).parents[3] / "docs"
PROBLEMS = "problems"  # the document to whose sections the types of problems lead
DOCUMENTS = tuple(f"clients/{name}.md" for name in ("quick-start", "guides", "contract", PROBLEMS))
STEMS = {Path(name).stem for name in DOCUMENTS}
MARKDOWN = MarkdownIt("commonmark").enable("table")
LINK = Template('<li><a href="#$id"><span>$title</span></a></li>')


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
