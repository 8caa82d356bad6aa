"""Tests SIGHUP: a service uses changed query files, or keeps the old ones if they are wrong."""

import asyncio
import json
import os
import pty
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from conftest import ROOT
from processes import GUNICORN, SERVE, find_processes, find_workers, get, serving
from structlog.testing import capture_logs
from support import Environment, Execute, add_movies, until, wait_until

from service.app import load_queries
from service.config import Config
from service.database import query_files, verification
from service.database.query import Query
from service.database.statements import Statements
from service.database.verification import QueryRegistry
from service.errors import Unavailable

# One that the reader of the files finds, and one that PostgreSQL finds.
MISTAKES = [
    ("-- name: get_movies(ids)", "-- nmae: get_movies(ids)", "`-- name: verb_noun"),
    ("m.title", "m.titel", "column m.titel does not exist"),
]
COMMANDS = [
    pytest.param(SERVE, {}, MISTAKES[0], id="serve"),
    pytest.param(GUNICORN, {"WEB_CONCURRENCY": "2"}, MISTAKES[1], id="gunicorn with two workers"),
]


@pytest.fixture
def queries(checkout: Path, environment: Environment, execute: Execute) -> Path:
    """Return the file with the queries about movies, of a service with one movie."""
    add_movies(execute, "Moana")
    environment["CATALOGUE_CONFIG"] = str(checkout / "config.toml")
    environment["PYTHONPATH"] = "."
    return checkout / "queries" / "movies.sql"


def change(file: Path, old: str, new: str) -> None:
    """Edit the first occurrence."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def title(base: str) -> str:
    """Return the movie's title as the service returns it."""
    with urllib.request.urlopen(f"{base}/v1/movies/1", timeout=5) as response:  # noqa: S310 - ours
        return str(json.load(response)["movie"]["title"])


def titles(base: str) -> set[str]:
    """Return the titles of all processes, over several connections."""
    with ThreadPoolExecutor(8) as threads:
        return set(threads.map(title, [base] * 16))


@contextmanager
def logging(
    command: list[str], environment: Environment, changes: Environment
) -> Iterator[tuple[str, subprocess.Popen[str], Callable[..., dict[str, Any]]]]:
    """Start a service; yield its address, its process, and a function that waits for a log line."""
    with serving(command, environment | changes) as (base, process), ThreadPoolExecutor(1) as one:
        lines: list[dict[str, Any]] = []

        def read() -> None:
            assert process.stdout
            for line in process.stdout:
                with suppress(ValueError):  # gunicorn's own
                    lines.append(json.loads(line))

        def wait_for(event: str, reason: str = "", times: int = 1) -> dict[str, Any]:
            def find() -> list[dict[str, Any]]:
                return [
                    line
                    for line in lines
                    if line.get("event") == event and reason in line.get("reason", "")
                ]

            wait_until(lambda: len(find()) >= times)
            return find()[-1]

        one.submit(read)
        workers = int(changes.get("WEB_CONCURRENCY", "1"))
        wait_until(lambda: len(find_processes(base)) == workers)  # each has read the files by then
        try:
            yield base, process, wait_for
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.parametrize(("command", "changes", "mistake"), COMMANDS)
def test_sighup_reloads_changed_queries(
    environment: Environment,
    queries: Path,
    command: list[str],
    changes: Environment,
    mistake: tuple[str, str, str],
) -> None:
    """Every process uses the new ones; wrong ones are logged with file and line, and not used."""
    right, wrong, reason = mistake
    old, new = "select m.id, m.title,", "select m.id, m.title || '!' as title,"
    workers = int(changes.get("WEB_CONCURRENCY", "1"))
    with logging(command, environment, changes) as (base, process, wait_for):
        change(queries, old, new)
        process.send_signal(signal.SIGHUP)
        line = wait_for("queries reloaded", times=workers)
        assert line["changed"] == ["get_movies"]
        assert titles(base) == {"Moana!"}

        change(queries, right, wrong)
        process.send_signal(signal.SIGHUP)
        line = wait_for("queries not reloaded", reason, times=workers)
        assert line["level"] == "warning"
        assert "queries/movies.sql:" in line["reason"]
        assert titles(base) == {"Moana!"}

        change(queries, wrong, right)
        change(queries, new, old)
        process.send_signal(signal.SIGHUP)
        wait_for("queries reloaded", times=2 * workers)
        assert titles(base) == {"Moana"}


def replace_worker(base: str, process: subprocess.Popen[str]) -> None:
    """Kill one of two workers, and wait until another one serves in its place."""
    before = find_processes(base)
    killed = find_workers(process)[0]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in find_workers(process))
    # Until the new one serves, the other one gets all requests.
    wait_until(lambda: len(after := find_processes(base)) == 2 and after != before)


def test_a_worker_that_starts_after_a_checkout_serves_the_old_release(
    environment: Environment, checkout: Path, execute: Execute
) -> None:
    """Whatever the files are by then: it has what its master has read."""
    add_movies(execute, "Moana")
    for name in ("service", "docs", "clients"):
        shutil.copytree(ROOT / name, checkout / name)
    shutil.copy(ROOT / "gunicorn.conf.py", checkout)
    with serving(GUNICORN, environment, checkout, WEB_CONCURRENCY="2") as (base, process):
        wait_until(lambda: len(find_processes(base)) == 2)
        page = urllib.request.urlopen(f"{base}/v1/docs").read()  # noqa: S310 - ours
        for module in checkout.glob("**/*.py"):
            module.write_text("raise AssertionError('a module of another release')")
        for name in ("queries/genres.sql", "docs/clients/guides.md", "clients/movies.py"):
            (checkout / name).unlink()
        shutil.rmtree(checkout / "service" / "web" / "reference_page")
        change(checkout / "queries" / "movies.sql", "m.title", "m.column_of_another_release")
        (checkout / "migrations" / "20991231000000_add_it.sql").write_text("-- migrate:up")
        (checkout / "config.toml").write_text("nonsense")

        for _ in range(2):
            replace_worker(base, process)

            assert titles(base) == {"Moana"}
            assert {get(f"{base}/v1/healthcheck/ready") for _ in range(16)} == {200}
            assert urllib.request.urlopen(f"{base}/v1/docs").read() == page  # noqa: S310 - ours


def test_a_worker_that_starts_after_a_reload_has_the_queries_of_the_others(
    environment: Environment, queries: Path
) -> None:
    """Not those that were refused since, in which PostgreSQL found the mistake, or just changed."""
    changes = {"WEB_CONCURRENCY": "2"}
    old, new, reason = MISTAKES[1]
    with logging(GUNICORN, environment, changes) as (base, process, wait_for):
        change(queries, "select m.id, m.title,", "select m.id, m.title || '!' as title,")
        process.send_signal(signal.SIGHUP)
        wait_for("queries reloaded", times=2)
        change(queries, old, new)
        process.send_signal(signal.SIGHUP)
        wait_for("queries not reloaded", reason, times=2)
        replace_worker(base, process)
        assert titles(base) == {"Moana!"}

        change(queries, f"{new} || '!'", f"{old} || '?'")
        replace_worker(base, process)
        assert titles(base) == {"Moana!"}


def test_a_reload_under_load_fails_no_request(environment: Environment, queries: Path) -> None:
    """Requests before, during and after the reload succeed, with the old or the new title."""
    with (
        serving(SERVE, environment, LOG_LEVEL="warning") as (base, process),
        ThreadPoolExecutor(8) as threads,
    ):
        asked = [threads.submit(title, base) for _ in range(600)]
        for number in range(5):
            change(
                queries, "select m.id, m.title,", f"select m.id, m.title || '{number}' as title,"
            )
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: title(base) == f"Moana{number}")  # noqa: B023 - called at once
            change(queries, f"m.title || '{number}' as title,", "m.title,")
        answers = {future.result() for future in asked}

    assert answers <= {"Moana", *(f"Moana{number}" for number in range(5))}


async def test_a_migration_that_was_taken_back_is_forgotten(
    settings: Callable[..., Config], checkout: Path, statements: Statements
) -> None:
    """After SIGHUP; until then, a process that started with its file is not ready."""
    own = checkout / "migrations" / "20991231000000_create_mine.sql"
    own.write_text("-- migrate:up\nselect 1;\n")
    files = QueryRegistry(settings(root=checkout), partial(load_queries, settings(root=checkout)))
    files.load()
    with pytest.raises(Unavailable, match="20991231000000"):
        await files.require_migrations(statements)

    own.unlink()
    with capture_logs() as logged:
        files.reload()
        await until(lambda: "queries reloaded" in [line["event"] for line in logged])
        await files.require_migrations(statements)

    assert logged[-1]["event"] == "ready"


async def test_a_reload_that_fails_in_any_way_is_logged(settings: Callable[..., Config]) -> None:
    """Nobody waits for it, so that nobody would see its traceback."""
    files = QueryRegistry(settings(), Mock(side_effect=ZeroDivisionError))

    with capture_logs() as logged:
        files.reload()
        await until(lambda: logged)

    assert [line["event"] for line in logged] == ["queries not reloaded"]


async def test_of_two_reloads_the_later_one_wins(
    settings: Callable[..., Config], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second reload ends the first, even if verifying is slow."""
    is_released = asyncio.Event()
    verified = []

    async def verify(_: Config, found: Mapping[str, Query]) -> bool:
        if found["get_a"].sql.endswith("1"):
            await is_released.wait()
        verified.append(found["get_a"].sql[-1])
        return True

    monkeypatch.setattr(verification, "verify_queries", verify)
    load = partial(query_files.load, checkout / "queries", {})
    files = QueryRegistry(settings(root=checkout), load)
    for number in "12":
        (checkout / "queries" / "a.sql").write_text(f"-- name: get_a()\nselect {number};")
        files.reload()
        for _ in range(5):
            await asyncio.sleep(0)  # it begins
    is_released.set()
    await until(lambda: verified)

    assert verified == ["2"]
    assert files.queries["get_a"].sql.endswith("2")


def test_a_closed_terminal_ends_a_service_in_the_foreground(environment: Environment) -> None:
    """A closed terminal sends SIGHUP, and nobody could stop the service after it."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        SERVE, env={**environment, "PORT": "0"}, stdin=theirs, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(theirs)
        assert process.stderr
        assert "listening on" in process.stderr.readline()

        os.close(ours)
        process.send_signal(signal.SIGHUP)

        assert process.wait(60) == 0
