"""The tables of log events and fields in docs/operators/run.md name what the service logs.

The calls that log are found in the source, because tests do not reach each of them.
"""

import ast
import re

from conftest import ROOT

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
    """Return the rows of the table in docs/operators/run.md that begins with these columns."""
    text = (ROOT / "docs" / "operators" / "run.md").read_text("utf-8")
    lines = text.partition(f"| {head} |\n")[2].splitlines()[1:]
    end = lines.index("")
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[:end]]


def test_every_event_is_documented() -> None:
    """With its meaning."""
    documented = {event.strip("`") for event, _, meaning in read_table("event | level | meaning")}

    assert documented == set(find_logged())


def test_every_field_is_documented_with_its_events() -> None:
    """Operators learn which lines have a field, and find none that is not there."""
    documented: dict[str, set[str]] = {event: set() for event in find_logged()}
    for name, _, events, _ in read_table("field | type | events | meaning"):
        for event in re.findall("`([^`]+)`", events):
            documented[event].add(name.strip("`"))

    assert documented == find_logged()


def test_the_fields_of_every_line_are_documented() -> None:
    """Those that structlog adds."""
    rows = read_table("field | type | events | meaning")

    assert {name.strip("`") for name, _, events, _ in rows if events == "all"} == IN_EVERY_LINE
