"""Finds SQL on the catalogue's data that is not in queries/*.sql, where DBAs see it.

Only service/database/ contains any SQL, for its sessions and migrations.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SERVICE = Path(__file__).parents[1] / "service"
SQL = re.compile(
    r"""^\s*(select|with\s+\w+\s+as|explain|analyze|truncate|vacuum|values\s*\()\b
      | ^\s*(begin|commit|rollback|savepoint|declare\s+\w+\s+cursor|fetch\s+\d+)\b
      | ^\s*(create|alter|drop|lock|grant|revoke|comment\s+on)\s+(table|index|function|type|role)\b
      | \bselect\b.+\bfrom\b | \binsert\s+into\b | \bdelete\s+from\b | \bset\s+local\b
      | \bupdate\s+\w+(\s+as\s+\w+)?\s+set\b | \bcopy\s+\w+\s*(\(|from\b|to\b)
      | \b(order|group)\s+by\b | \b(next|set)val\s*\(
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
ALLOWED = {
    "commit",  # a setting, a label and a field
    "select switch_movie_feed(%s)",  # a command of operators, beside the migrations
}
DATA = re.compile(r"\b(movies|movies_id_seq|idempotency_\w+)\b")


def strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield string literals with their lines, without docstrings; an f-string is one literal."""
    tree = ast.parse(source)
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))  # a docstring
        if isinstance(node, ast.JoinedStr):
            texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            parts |= {id(part) for part in node.values}
            yield node.lineno, " ".join(map(str, texts))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


if __name__ == "__main__":
    sys.exit(
        "\n".join(
            f"{path}:{line}: SQL belongs in queries/: {text}"
            for path in SERVICE.rglob("*.py")
            for line, text in strings(path.read_text())
            if text not in ALLOWED
            if SQL.search(text)
            and (DATA.search(text) or not path.is_relative_to(SERVICE / "database"))
        )
        or None
    )
