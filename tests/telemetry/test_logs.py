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
from conftest import ROOT, Client
from multidict import CIMultiDict
from support import WAIT_S, Capture

IN_EVERY_LINE = ("event", "level", "timestamp")

# Sets up logging, runs the test's code, and writes to stderr at the end.
PROGRAM = """
import logging, os, sys
import structlog
from service.telemetry import logs
from service.config import Log

log = structlog.get_logger()  # at import, before the settings are known
settings = Log(level={level!r}, format={format!r}, slow_statement=0)
logs.configure(settings)
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
            timeout=WAIT_S,
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


def test_without_a_terminal_each_event_is_a_line_of_json(run: Run) -> None:
    """With level and time in UTC; line ends are escaped, and the text can be restored."""
    text = 'two\nlines\r\nand é 🎬 \u2028 \x00 "quotes" \\'

    first, second = events(run(f"log.info('first', status=200, text={text!r}); log.info('second')"))

    moment = datetime.fromisoformat(first.pop("timestamp"))
    assert first == {"event": "first", "level": "info", "status": 200, "text": text}
    assert second["event"] == "second"
    assert moment.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)


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


def test_no_value_makes_logging_fail(run: Run) -> None:
    """What JSON does not know, as paths and errors, is written with `str`."""
    values = ["pathlib.Path('/a')", "ValueError('bad')", "2**70", "'\\ud800'", "{1: 2}"]
    values += ["b'bytes'", "float('nan')", "{'a': {2, 3}}"]

    logged = events(
        run("import pathlib\n" + "\n".join(f"log.info('odd', value={value})" for value in values))
    )

    assert [event["event"] for event in logged] == ["odd"] * len(values)
    assert [event["value"] for event in logged[:2]] == ["/a", "bad"]


LIBRARY = "logging.getLogger('aiohttp.server').error('bad %s: %d', 'request', 7)\n"


def test_on_a_terminal_it_is_text(run: Run) -> None:
    """The lines of libraries, too; unless JSON is asked for."""
    code = f"log.info('request', status=200)\n{LIBRARY}"

    output = on_a_terminal(run, code)

    assert all(text in output for text in ("request", "200", "bad request: 7"))
    assert "{" not in output
    assert on_a_terminal(run, code, form="json").startswith("{")


def test_text_can_be_asked_for(run: Run) -> None:
    """In a pipe, too, with tracebacks and without colours; a byte that is no text is a `?`."""
    odd = "log.info('odd', value=os.fsdecode(b'a\\xff'))"
    output = run(f"log.info('request', status=200)\n{odd}\n{FAIL}", form="text")

    assert "status=200" in output
    assert "a?" in output
    assert "\x1b" not in output
    assert "{" not in output
    assert output.count("ZeroDivisionError") >= 2


def test_libraries_log_the_same_way(run: Run) -> None:
    """Messages of `logging` become the same lines; a call that does not fit its format is left."""
    wrong = "logging.raiseExceptions = False\nlogging.getLogger('x').warning('%d', 'no number')"

    event, *_ = events(run(LIBRARY + wrong))

    assert event.keys() == set(IN_EVERY_LINE)
    assert (event["event"], event["level"]) == ("bad request: 7", "error")


LEVELS = ("debug", "info", "warning", "error")


@pytest.mark.parametrize("level", ["debug", "error"])
def test_the_level_is_respected(run: Run, level: str) -> None:
    """Events from the level on are written; those of libraries from warnings on."""
    code = f"for name in {LEVELS}:\n    for each in (log, logging.getLogger('x')):\n"
    written = LEVELS[LEVELS.index(level) :]
    expected = [name for name in written for _ in range(2 if name in ("warning", "error") else 1)]

    output = run(f"{code}        getattr(each, name)(name)", level=level)

    assert [event["event"] for event in events(output)] == expected


ACCESS = """
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from service.database.caller import Caller
from service.telemetry.metrics import Metrics
from service.web.access_log import AccessLog
from service.web.context import CONTEXT, RequestContext

request = make_mocked_request('GET', '/v1/movies/1', headers={'User-Agent': 'caf\\xe9'})
context = RequestContext('7f', 'GET', Caller('192.0.2.1'), {}, route='/v1/movies/{id}', reason='x')
request.writer.output_size = 700
request[CONTEXT] = context
AccessLog(Metrics(is_enabled=False), settings).log(request, web.Response(status=503), 0.0123)
"""


def test_the_access_line_is_the_one_of_structlog(run: Run) -> None:
    """It has the same keys in the same order, although it does not pass through structlog."""
    (line,) = events(run(ACCESS))
    fields = {name: value for name, value in line.items() if name not in IN_EVERY_LINE}

    (same,) = events(run(f"log.info('request', **{fields!r})"))

    assert list(line) == list(same)
    assert line | {"timestamp": ""} == same | {"timestamp": ""}
    assert datetime.fromisoformat(line["timestamp"]).utcoffset() == timedelta(0)


# More than a pipe holds, from both sides.
LOG_MUCH = """
for number in range(30):
    log.info('x' * 9000)
    logging.getLogger('x').error('y' * 9000)
"""


def test_an_output_that_takes_no_lines_stops_nothing(run: Run) -> None:
    """A full disk, a closed stdout or pipe: the lines are lost, and the status is 0."""
    with Path("/dev/full").open("wb") as full:
        run(LOG_MUCH, stdout=full)
    run(f"sys.stdout.close()\n{LOG_MUCH}")
    reader, writer = os.pipe()
    os.close(reader)
    run(LOG_MUCH, stdout=writer)
    os.close(writer)


def test_dropped_lines_are_counted(environment: dict[str, str]) -> None:
    """While the process goes on, lines are written; the buffer has a limit.

    When the reader goes on, a line says how many did not fit.
    """
    code = "for number in range(5000):\n    log.info('x' * 1000, number=number)"
    with subprocess.Popen(
        [
            *(sys.executable, "-c"),
            PROGRAM.format(level="info", format="auto", code=code) + "sys.stdin.read()",
        ],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stderr.readline()  # all is logged, and nothing was read
        written: list[dict[str, Any]] = []
        while not written or written[-1]["event"] != "log lines dropped":
            written.append(json.loads(process.stdout.readline()))
        rest, _ = process.communicate()

    *first, report = written
    numbers = [event["number"] for event in first]
    assert numbers == sorted(numbers)
    assert 4096 <= len(first) < 4300  # MAX_LINES, and what a pipe holds
    assert report["lines"] == 5000 - len(first)
    assert rest == b""
    assert process.returncode == 0


def test_a_disk_that_was_full_tears_no_line(run: Run) -> None:
    """If it took a part of a line, the rest is the next that is written."""
    output = run(
        "import time\n"
        "write, written = os.write, []\n"
        "def write_badly(descriptor, text):\n"
        "    written.append(text)\n"
        "    if len(written) == 2: raise OSError(28, 'No space left on device')\n"
        "    return write(descriptor, text[:10] if len(written) == 1 else text)\n"
        "os.write = write_badly\n"
        "log.info('first')\n"
        "while len(written) < 2: time.sleep(0.01)\n"
        "log.info('second')\n"
        "while b'second' not in written[-1]: time.sleep(0.01)\n"
    )

    assert [event["event"] for event in events(output)] == ["first", "second"]


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


# The trace of a request: `traceparent` of W3C's Trace Context.

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


async def log_request(client: Client, capsys: Capture, *traceparents: str) -> str:
    """Send a request with these headers, and return its access line."""
    headers = CIMultiDict([("traceparent", each) for each in traceparents])
    await client.get("/v1", headers=headers)
    return capsys.readouterr().out


TRACEPARENTS = [
    *(f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00", "ff")),
    # Later versions may have more fields.
    f"01-{TRACE}-{PARENT}-01",
    f"cc-{TRACE}-{PARENT}-01-what-the-future-brings",
    f"cc-{TRACE}-{PARENT}-01-",
]
NO_TRACEPARENTS = [
    "",
    *(f"00-{TRACE}-{PARENT}{end}" for end in ("", "-1", "-01-more", "-01-", "-01.", "-0A", "0-01")),
    *(f"{version}-{TRACE}-{PARENT}-01" for version in ("ff", "0A")),
    *(f"00-{trace}-{PARENT}-01" for trace in ("0" * 32, TRACE.upper(), TRACE[:-1])),
    *(f"00-{TRACE}-{parent}-01" for parent in ("0" * 16, PARENT.upper())),
    f"cc-{TRACE}-{PARENT}-01.what",
    f"00_{TRACE}_{PARENT}_01",
]


async def test_the_access_line_has_the_trace(client: Client, capsys: Capture) -> None:
    """An invalid traceparent is ignored, and so are two: nobody can know which one is right."""
    for sent in TRACEPARENTS:
        assert f"trace_id={TRACE}" in await log_request(client, capsys, sent), sent
    for ignored in ([sent] for sent in NO_TRACEPARENTS), [[TRACEPARENTS[0], TRACEPARENTS[0]]]:
        for headers in ignored:
            logged = await log_request(client, capsys, *headers)
            assert "status=200" in logged
            assert "trace_id" not in logged, headers
