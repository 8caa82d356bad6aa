"""The table of log events in docs/logs.md names what the service logs.

The calls that log are found in the source, because tests do not reach each of them.
"""

import ast
import re

from conftest import ROOT

DOCUMENT = ROOT / "docs" / "logs.md"
LOGGERS = {"log", "structlog.get_logger()"}
IN_EVERY_LINE = {"event", "level", "timestamp"}
SOURCES = [*sorted((ROOT / "service").rglob("*.py")), ROOT / "gunicorn.conf.py"]
MODULE_OF = {
    node: path
    for path in SOURCES
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_texts(node: ast.AST) -> set[str]:
    """Return the texts in an expression."""
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


def find_keys(function: Function) -> set[str]:
    """Return the keys of all dictionaries that a function makes or changes."""
    keys = set[str]()
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            keys |= {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys |= find_texts(node.slice)
    return keys


def find_fields(keyword: ast.keyword, caller: Function) -> set[str]:
    """Return the field of an argument; for `**fields`, the keys of the function that makes them."""
    if keyword.arg:
        return {"exception" if keyword.arg == "exc_info" else keyword.arg}
    calls = [keyword.value] + [
        node.value
        for node in ast.walk(caller)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == ast.unparse(keyword.value)
    ]
    source = next((each.func for each in calls if isinstance(each, ast.Call)), keyword.value)
    name = ast.unparse(source).rpartition(".")[2]
    functions = [each for each in MODULE_OF if each.name == name] or [caller]
    near = [each for each in functions if MODULE_OF[each] == MODULE_OF[caller]]
    return {key for function in near or functions for key in find_keys(function)}


def find_logged() -> dict[str, set[str]]:
    """Return the fields of each event, from the calls in the source."""
    logged: dict[str, set[str]] = {}
    for function in MODULE_OF:
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            if ast.unparse(call.func.value) not in LOGGERS or not call.args:
                continue
            found = {"exception"} if call.func.attr == "exception" else set()
            for keyword in call.keywords:
                found |= find_fields(keyword, function)
            for event in find_texts(call.args[0]):
                logged.setdefault(event, set()).update(found - IN_EVERY_LINE)
    return logged


def read_table(head: str) -> list[list[str]]:
    """Return the rows of the table in docs/logs.md that begins with these columns."""
    text = DOCUMENT.read_text("utf-8")
    lines = text.partition(f"| {head} |\n")[2].splitlines()[1:]
    end = lines.index("")
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[:end]]


def test_every_event_is_documented_with_its_fields() -> None:
    """Operators learn which fields a line has, and find none that is not there."""
    rows = read_table("event | level | fields | meaning")

    documented = {row[0].strip("`"): set(re.findall("`([^`]+)`", row[2])) for row in rows}
    assert documented == find_logged()


def test_the_fields_of_every_line_are_documented() -> None:
    """Those that structlog adds."""
    (sentence,) = re.findall(r"Each line has ([^(]+) \(", " ".join(DOCUMENT.read_text().split()))

    assert set(re.findall("`([^`]+)`", sentence)) == IN_EVERY_LINE
