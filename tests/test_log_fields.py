"""The tables of log events and fields in docs/operators/run.md name what the service logs.

The calls that log are found in the source, because tests do not reach each of them.
"""

import ast
import re
from collections.abc import Iterator

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


def find_values(name: str, function: Function) -> list[ast.expr]:
    """Return what the variable is set to in the function."""
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == name
    ]


def find_events(node: ast.expr, function: Function) -> set[str]:
    """Return the texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        return find_events(node.body, function) | find_events(node.orelse, function)
    if isinstance(node, ast.Name):
        values = find_values(node.id, function)
        return {text for value in values for text in find_events(value, function)}
    return {str(node.value)} if isinstance(node, ast.Constant) else set()


def find_keys(node: ast.expr, function: Function) -> Iterator[str]:
    """Yield the keys that a dictionary may have: a literal, a variable, or a result."""
    if isinstance(node, ast.IfExp):
        yield from find_keys(node.body, function)
        yield from find_keys(node.orelse, function)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value)
            elif key is None:  # **value
                yield from find_keys(value, function)
    elif isinstance(node, ast.Name):
        yield from find_keys_of_variable(node.id, function)
    elif isinstance(node, ast.Call):
        yield from find_keys_of_result(ast.unparse(node.func), function)
    elif isinstance(node, ast.Attribute):  # a property
        yield from find_keys_of_result(node.attr, function)


def find_keys_of_variable(name: str, function: Function) -> Iterator[str]:
    """Yield the keys of a dictionary that the function makes."""
    for value in find_values(name, function):
        yield from find_keys(value, function)
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == name:
            yield str(ast.literal_eval(node.slice))


def find_keys_of_result(name: str, caller: Function) -> Iterator[str]:
    """Yield the keys of a dictionary that a function returns, of the caller's module if it can."""
    functions = [each for each in MODULE_OF if each.name == name]
    near = [each for each in functions if MODULE_OF[each] == MODULE_OF[caller]]
    for function in near or functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value:
                yield from find_keys(node.value, function)


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
                name = keyword.arg
                keys = find_keys(keyword.value, function) if name is None else [name]
                found |= {"exception" if key == "exc_info" else key for key in keys}
            for event in find_events(call.args[0], function):
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
