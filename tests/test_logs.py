"""Tests logs: one line per event on stdout, JSON or text, never an exception.

Logging is set up once per process, so each test starts a process.
"""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

# Sets up logging, runs the test's code, and writes to stderr at the end.
PROGRAM = """
import logging, os, sys
import structlog
from service import logs
from service.config import Log

logs.configure(Log(level={level!r}, format={format!r}, slow_statement=0))
log = structlog.get_logger()
{code}
print("reached its end", file=sys.stderr)
"""


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a process that only logs: no database."""
    kept = ("PATH", "HOME", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")
    return {name: os.environ[name] for name in kept if name in os.environ}


Run = Callable[..., str]


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Run code that logs, in a process of its own, and return what it wrote to stdout."""

    def run(code: str, *, level: str = "info", form: str = "auto", stdout: Any = None) -> str:
        program = PROGRAM.format(level=level, format=form, code=code)
        process = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert process.stderr.decode() == "reached its end\n"
        return (process.stdout or b"").decode("utf-8")

    return run


def events(output: str) -> list[dict[str, Any]]:
    """Parse an output with one JSON object per line."""
    *lines, last = output.split("\n")
    assert last == ""
    return [json.loads(line) for line in lines]


def on_a_terminal(run: Run, code: str, **options: Any) -> str:
    """Run code whose stdout is a terminal, and return what was written there."""
    reader, writer = pty.openpty()
    try:
        run(code, stdout=writer, **options)
        return os.read(reader, 65536).decode("utf-8")
    finally:
        os.close(writer)
        os.close(reader)


def test_without_a_terminal_it_is_json(run: Run) -> None:
    """In a pipe or file, an event is a JSON object on one line, with level and time in UTC."""
    output = run("log.info('request', status=200, path='/v1/movies')")
    (event,) = events(output)

    moment = datetime.fromisoformat(event.pop("timestamp"))
    assert event == {"event": "request", "level": "info", "status": 200, "path": "/v1/movies"}
    assert moment.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)


def test_each_event_is_one_line(run: Run) -> None:
    """Line ends in an event are escaped, and its text can be restored."""
    text = 'two\nlines\r\nand é 🎬 \u2028 \x00 "quotes" \\'

    output = run(f"log.info('first', text={text!r}); log.info('second')")

    first, second = events(output)
    assert first["text"] == text
    assert second["event"] == "second"


FAIL = """
try:
    1 / 0
except ZeroDivisionError:
    log.exception('failed', request_id='x')
    logging.exception('failed')
"""


def test_an_exception_comes_with_its_traceback(run: Run) -> None:
    """The line has place and reason, also for an exception of a library."""
    ours, library = events(run(FAIL))

    assert ours["request_id"] == "x"
    for event in (ours, library):
        assert (event["event"], event["level"]) == ("failed", "error")
        assert event["exception"].startswith("Traceback (most recent call last):")
        assert event["exception"].endswith("ZeroDivisionError: division by zero")


def test_a_value_that_json_does_not_know_is_logged_as_text(run: Run) -> None:
    """Paths, errors and similar values are written with `str`."""
    code = "import pathlib\nlog.info('x', path=pathlib.Path('/a'), error=ValueError('bad'))"

    (event,) = events(run(code))

    assert (event["path"], event["error"]) == ("/a", "bad")


def test_no_value_makes_logging_fail(run: Run) -> None:
    """The event is written with any value."""
    values = ["2**70", "'\\ud800'", "{1: 2}", "b'bytes'", "float('nan')", "{'a': {2, 3}}"]

    output = run("\n".join(f"log.info('odd', value={value})" for value in values))

    assert [event["event"] for event in events(output)] == ["odd"] * len(values)


def test_text_that_is_not_unicode_is_logged(run: Run) -> None:
    """Such as a file name of other bytes: a person sees a question mark."""
    output = run("log.info('odd', value=os.fsdecode(b'a\\xff'))", form="text")

    assert "a?" in output


def test_on_a_terminal_it_is_text(run: Run) -> None:
    """On a terminal, the format is text, not JSON."""
    output = on_a_terminal(run, "log.info('request', status=200)")

    assert "request" in output
    assert "200" in output
    assert "{" not in output


def test_text_can_be_asked_for(run: Run) -> None:
    """`format = "text"` gives text in a pipe, too, including tracebacks."""
    output = run(f"log.info('request', status=200)\n{FAIL}", form="text")

    assert "request" in output
    assert "{" not in output
    assert output.count("ZeroDivisionError") >= 2


def test_json_can_be_asked_for(run: Run) -> None:
    """`format = "json"` gives JSON even on a terminal."""
    output = on_a_terminal(run, "log.info('request', status=200)", form="json")

    assert json.loads(output)["status"] == 200


def test_libraries_log_the_same_way(run: Run) -> None:
    """Messages of `logging` become the same lines, with their arguments."""
    code = "logging.getLogger('aiohttp.server').error('bad %s: %d', 'request', 7)"

    (event,) = events(run(code))

    assert (event["event"], event["level"]) == ("bad request: 7", "error")
    assert "timestamp" in event


def test_libraries_log_as_text_on_a_terminal(run: Run) -> None:
    """Their lines look like the service's lines."""
    output = on_a_terminal(run, "logging.getLogger('asyncio').warning('slow %s', 'task')")

    assert "slow task" in output
    assert "{" not in output


@pytest.mark.parametrize(
    ("level", "written"), [("debug", ["warning", "error"]), ("error", ["error"])]
)
def test_libraries_log_from_warnings_on(run: Run, level: str, written: list[str]) -> None:
    """From the service's level on, if that is higher."""
    names = ("info", "warning", "error")
    code = "\n".join(f"logging.getLogger('x').{name}('{name}')" for name in names)

    assert [event["event"] for event in events(run(code, level=level))] == written


def test_a_broken_call_of_a_library_does_not_fail(run: Run) -> None:
    """Arguments that do not fit their format are ignored, as in `logging`."""
    run("logging.raiseExceptions = False\nlogging.getLogger('x').warning('%d', 'no number')")


LEVELS = ("debug", "info", "warning", "error")


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_is_respected(run: Run, level: str) -> None:
    """Events below the level are not written, all others are."""
    code = "\n".join(f"log.{name}('{name}')" for name in LEVELS)

    output = run(code, level=level)

    assert [event["event"] for event in events(output)] == list(LEVELS[LEVELS.index(level) :])


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_level_holds_for_the_access_line(run: Run, form: str) -> None:
    """The access line has the level info."""
    code = "logs.access.write('request', status=200)"

    assert "request" in run(code, level="info", form=form)
    assert run(code, level="warning", form=form) == ""


def test_the_access_line_is_the_one_of_structlog(run: Run) -> None:
    """It has the same keys and values in the same order, except for the time."""
    code = "log.info('request', status=200); logs.access.write('request', status=200)"

    first, second = events(run(code))

    assert list(first) == list(second)
    assert first | {"timestamp": ""} == second | {"timestamp": ""}


def test_loggers_made_before_setting_up_obey(environment: dict[str, str]) -> None:
    """A logger made at import uses the settings made later."""
    program = (
        "import structlog\nlog = structlog.get_logger()\n"
        "from service import logs\nfrom service.config import Log\n"
        "logs.configure(Log(level='warning', format='json', slow_statement=0))\n"
        "log.info('left out')\nlog.warning('written')\n"
    )

    output = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert [event["event"] for event in events(output)] == ["written"]


# More than stdout's buffer, from both sides.
LOG_MUCH = """
for number in range(3):
    log.info('x' * 9000)
    logging.getLogger('x').error('y' * 9000)
"""
# The end of a process that is killed: its buffer is lost.
KILLED = "\nos.write(2, b'reached its end\\n')\nos._exit(0)\n"


def within_a_loop(code: str) -> str:
    """Run code in an event loop, and then a few turns of the loop."""
    indented = "".join(f"    {line}\n" for line in code.splitlines())
    return (
        f"import asyncio\nasync def main():\n{indented}"
        "    for turn in range(3):\n        await asyncio.sleep(0)\nasyncio.run(main())\n"
    )


Where = pytest.mark.parametrize(
    "where", [str, within_a_loop], ids=["outside a loop", "within a loop"]
)


@Where
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk always full")
def test_a_full_disk_does_not_fail_what_is_logged(run: Run, where: Callable[[str], str]) -> None:
    """If stdout cannot be written, the event is lost and the service continues."""
    with Path("/dev/full").open("wb") as full:
        run(where(LOG_MUCH) + KILLED, stdout=full)


@Where
def test_a_closed_pipe_does_not_fail_what_is_logged(run: Run, where: Callable[[str], str]) -> None:
    """If the reader of the logs has gone, the service continues."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        run(where(LOG_MUCH) + KILLED, stdout=writer)
    finally:
        os.close(writer)


@Where
def test_a_closed_stdout_does_not_fail_what_is_logged(
    run: Run, where: Callable[[str], str]
) -> None:
    """If stdout is closed, the service continues."""
    run("sys.stdout.close()\n" + where(LOG_MUCH) + KILLED)


@Where
def test_lines_are_written_at_once(run: Run, where: Callable[[str], str]) -> None:
    """A line is written when it is logged, so a killed process loses none."""
    output = run(where("log.info('last words')") + KILLED)

    assert [event["event"] for event in events(output)] == ["last words"]


@Where
def test_lines_stay_whole_and_in_order(run: Run, where: Callable[[str], str]) -> None:
    """Any number of events of any length stay whole lines, in the order of logging."""
    code = (
        "for number in range(300):\n    log.info('é' * number, number=number)\n"
        "    logging.getLogger('x').error('%d', number)"
    )

    output = run(where(code) + KILLED)

    logged = events(output)
    assert [event["number"] for event in logged[::2]] == list(range(300))
    assert [event["event"] for event in logged[1::2]] == [str(number) for number in range(300)]


def test_what_is_logged_after_the_loop_is_written_too(run: Run) -> None:
    """Events at the end of an event loop and after it are written."""
    code = "import asyncio\nasync def main():\n    log.info('within')\nasyncio.run(main())\n"

    output = run(code + "log.info('after')\n" + KILLED)

    assert [event["event"] for event in events(output)] == ["within", "after"]


def test_a_line_is_one_write(run: Run) -> None:
    """Otherwise lines of processes that share a pipe would be mixed."""
    run(
        "from types import SimpleNamespace\nwritten = []\n"
        "buffer = SimpleNamespace(write=written.append, flush=lambda: None)\n"
        "sys.stdout = SimpleNamespace(buffer=buffer)\n"
        "log.info('x' * 3000)\nlogging.getLogger('x').error('y')\n"
        "sys.stdout = sys.__stdout__\n"
        "assert [line.count(b'\\n') for line in written] == [1, 1]\n"
    )
