"""The table of log events in docs/logs.md names what the service logs.

The calls that log are found in the source, because tests do not reach each of them.
"""

import ast
import re

from conftest import ROOT

LOGGERS = {"log", "structlog.get_logger()"}
SOURCES = [*sorted((ROOT / "service").rglob("*.py")), ROOT / "gunicorn.conf.py"]


def find_events() -> set[str]:
    """Return the events that the source logs."""
    return {
        each.value
        for path in SOURCES
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args
        if ast.unparse(call.func.value) in LOGGERS
        for each in ast.walk(call.args[0])
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def test_every_event_is_documented() -> None:
    """Operators find what each line means, and no line that is not there."""
    table = (ROOT / "docs" / "logs.md").read_text("utf-8").partition("| event | level |")[2]
    table = table.partition("\n\n")[0]

    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == find_events()
