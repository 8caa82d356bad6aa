"""Tests that the machinery names no resource: another one could use it as it is."""

import ast
import re
from pathlib import Path

import pytest
from conftest import ROOT

SERVICE = ROOT / "service"
MODULES = [
    path for name in ("database", "telemetry", "web") for path in (SERVICE / name).rglob("*.py")
]
RESOURCE = re.compile(
    r"movie|genre|film|external_id|idempotency_keys|search_words|\b(from|into|update|join) clients",
    re.IGNORECASE,
)
# What names the catalogue as a whole, or is an example, in all modules and in each one.
EVERYWHERE = "movie-catalogue|/v1/movies/7"
ALLOWED = {
    "database/migrations/files.py": "add_genre_index",  # an example
    "database/migrations/session.py": "movies",  # the number of an advisory lock
    "database/query_testing.py": "movie_matches|export_movies|count_genres",  # of its samples
    "telemetry/metrics.py": "idempotency_keys",  # as operators know it
    "web/openapi.py": "movies?|genres",  # the title and the description of the API
    "web/reference.py": r"movies\.(py|mjs)|/v1/movies|the movies",  # clients to copy, and /v1
    "web/route.py": "movies",  # the group on the page, unless a route names another one
}


def find_names(path: Path) -> list[str]:
    """Return the names and texts of a module's code, without docstrings."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        str(value)
        for node in nodes
        if id(node) not in docstrings
        for _, value in ast.iter_fields(node)
        if isinstance(value, str | bytes)
    ]


def name_module(path: Path) -> str:
    """Name a module in the list and in the report of the tests."""
    return str(path.relative_to(SERVICE))


@pytest.mark.parametrize("path", MODULES, ids=name_module)
def test_the_machinery_names_no_resource(path: Path) -> None:
    """import-linter sees imports only; comments may give examples."""
    allowed = re.compile(
        f"{EVERYWHERE}|{ALLOWED.get(name_module(path), EVERYWHERE)}", re.IGNORECASE
    )

    assert [name for name in find_names(path) if RESOURCE.search(allowed.sub("", name))] == []
