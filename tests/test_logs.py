"""Tests logs: one line per event on stdout, JSON or text, never an exception.

Logging is set up once per process, so each test starts a process.
"""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
IN_EVERY_LINE = ("event", "level", "timestamp")

# Sets up logging, runs the test's code, and writes to stderr at the end.
PROGRAM = """
import logging, os, sys
import structlog
from service import logs
from service.config import Log

settings = Log(level={level!r}, format={format!r}, slow_statement=0)
logs.configure(settings)
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
        assert process.returncode == 0
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
    """`format = "text"` gives text in a pipe, too, including tracebacks; colours are for people."""
    output = run(f"log.info('request', status=200)\n{FAIL}", form="text")

    assert "status=200" in output
    assert "\x1b" not in output
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


ACCESS = """
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from service.context import RequestContext
from service.web.request_cycle.access_log import AccessLog

request = make_mocked_request('GET', '/v1/movies/1', headers={'User-Agent': 'caf\\xe9'})
context = RequestContext('7f', 'GET', '192.0.2.1', {}, route='/v1/movies/{id}', reason='x')
context.sent_bytes = 700
AccessLog(settings).write(request, context, web.Response(status=503), 0.0123)
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_level_holds_for_the_access_line(run: Run, form: str) -> None:
    """The access line has the level info."""
    assert "request" in run(ACCESS, level="info", form=form)
    assert run(ACCESS, level="warning", form=form) == ""


def test_the_access_line_is_the_one_of_structlog(run: Run) -> None:
    """It has the same keys in the same order, although it does not pass through structlog."""
    (line,) = events(run(ACCESS))
    fields = {name: value for name, value in line.items() if name not in IN_EVERY_LINE}

    (same,) = events(run(f"log.info('request', **{fields!r})"))

    assert list(line) == list(same)
    assert line | {"timestamp": ""} == same | {"timestamp": ""}
    assert datetime.fromisoformat(line["timestamp"]).utcoffset() == timedelta(0)


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


# More than a pipe holds, from both sides.
LOG_MUCH = """
for number in range(30):
    log.info('x' * 9000)
    logging.getLogger('x').error('y' * 9000)
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk always full")
def test_a_full_disk_stops_nothing(run: Run) -> None:
    """Where stdout cannot be written, the lines are lost, and the exit status is 0."""
    with Path("/dev/full").open("wb") as full:
        run(LOG_MUCH, stdout=full)


def test_a_closed_pipe_stops_nothing(run: Run) -> None:
    """Where nobody reads the logs any more, the service goes on, and the exit status is 0."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        run(LOG_MUCH, stdout=writer)
    finally:
        os.close(writer)


def test_a_stalled_reader_stops_nothing(run: Run) -> None:
    """Where nobody reads for now, the service goes on, and the exit status is 0."""
    reader, writer = os.pipe()
    try:
        run(LOG_MUCH, stdout=writer)
    finally:
        os.close(writer)
        os.close(reader)


def test_a_closed_stdout_stops_nothing(run: Run) -> None:
    """Where stdout has been closed, the service goes on."""
    run(f"sys.stdout.close()\n{LOG_MUCH}")


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start a process that logs, which ends when its stdin ends."""
    with ExitStack() as processes:

        def begin(code: str) -> subprocess.Popen[bytes]:
            program = PROGRAM.format(level="info", format="auto", code=code) + "sys.stdin.read()"
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            return processes.enter_context(process)

        yield begin


def test_a_line_is_written_before_the_end(start: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """While the process goes on."""
    process = start("log.info('first')")

    assert process.stdout
    assert json.loads(process.stdout.readline())["event"] == "first"
    process.communicate()


def test_dropped_lines_are_counted(start: Callable[[str], subprocess.Popen[bytes]]) -> None:
    """The buffer has a limit; when the reader goes on, a line says how many did not fit."""
    process = start("for number in range(5000):\n    log.info('x' * 1000, number=number)")
    assert process.stdout
    assert process.stderr
    process.stderr.readline()  # all is logged, and nothing was read

    written = []
    for line in process.stdout:
        written.append(json.loads(line))
        if written[-1]["event"] == "log lines dropped":
            break

    *first, report = written
    process.communicate()
    numbers = [event["number"] for event in first]
    assert numbers == sorted(numbers)
    assert 4096 <= len(first) < 4300  # MAX_LINES, and what a pipe holds
    assert report["lines"] == 5000 - len(first)
    assert process.returncode == 0


def test_lines_stay_whole_and_in_order(run: Run) -> None:
    """However many and however long, each event is a line, and they come as they were logged."""
    output = run(
        "for number in range(300):\n    log.info('é' * number, number=number)\n"
        "    logging.getLogger(f'x{number}').error('%d', number)"
    )

    logged = events(output)
    assert [event["number"] for event in logged[::2]] == list(range(300))
    assert [event["event"] for event in logged[1::2]] == [str(number) for number in range(300)]


def test_a_disk_that_was_full_tears_no_line(run: Run) -> None:
    """If it took a part of a line, the rest is the next that is written."""
    output = run(
        "write = os.write\n"
        "def write_part(descriptor, text):\n"
        "    os.write = fail\n"
        "    return write(descriptor, text[:10])\n"
        "def fail(descriptor, text):\n"
        "    os.write = write\n"
        "    raise OSError(28, 'No space left on device')\n"
        "os.write = write_part\n"
        "log.info('first')\n"
        "import time\n"
        "while os.write is not write: time.sleep(0.01)\n"
        "log.info('second')\ntime.sleep(1)\n"
    )

    assert [event["event"] for event in events(output)] == ["first", "second"]


def test_a_write_has_whole_lines_of_at_most_4096_bytes(run: Run) -> None:
    """Or lines of several processes would be mixed on the pipe that they share."""
    run(
        "written = []\n"
        "os.write = lambda _, text: written.append(text) or len(text)\n"
        "for number in range(100): log.info('x' * number)\n"
        "log.info('x' * 5000)\n"
        "from service.log_writer import get_writer\n"
        "get_writer().close()\n"
        "assert b''.join(written).count(b'\\n') == 101\n"
        "assert all(text.endswith(b'\\n') for text in written)\n"
        "assert [text.count(b'\\n') for text in written if len(text) > 4096] == [1]\n"
    )


def test_a_forked_process_logs_its_own_lines_only(run: Run) -> None:
    """As gunicorn forks its workers; what the parent has not yet written is the parent's."""
    output = run(
        "import warnings\n"
        "warnings.simplefilter('ignore')  # from 3.12 on, of forks with threads\n"
        "log.info('parent')\n"
        "if child := os.fork():\n"
        "    os.waitpid(child, 0)\n"
        "else:\n"
        "    log.info('child')\n"
        "    sys.exit()\n"
    )

    assert sorted(event["event"] for event in events(output)) == ["child", "parent"]
