"""Tests how a connection is opened: the addresses of a URL, and their timeouts."""

import asyncio
import os
import resource
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

import psycopg2
import pytest
from link import Link, fetch_value, opened
from support import Execute, Patch, until

from service.config import Config
from service.database import connections
from service.database.connections import Connector
from service.database.query import absorb_late_timeout
from service.errors import OperatorError

MakeConnector = Callable[..., Connector]


@pytest.fixture
def make_connector(settings: Callable[..., Config], monkeypatch: Patch) -> MakeConnector:
    """Make a connector for a URL, with this timeout in seconds."""

    def make(url: str, connect_timeout: float = 10) -> Connector:
        monkeypatch.setattr(connections, "POOL_CONNECT_TIMEOUT_S", connect_timeout)
        return Connector(settings(database__url=url).database)

    return make


@pytest.fixture
async def other(database: str) -> AsyncIterator[Link]:
    """A second network to the test's database."""
    async with opened(database) as other:
        yield other


def url_of_both(link: Link, other: Link) -> str:
    """Return a URL with two hosts."""
    return link.url_through("127.0.0.1,127.0.0.1", f"{link.port},{other.port}")


@pytest.mark.parametrize("option", ["client_encoding=latin1", "connect_timeout=5", "keepalives=1"])
async def test_the_url_may_have_options_of_libpq(
    make_connector: MakeConnector, database: str, option: str
) -> None:
    """A URL may have options, such as the name that `pg_stat_activity` shows; text is UTF-8."""
    connector = make_connector(f"{database}&{option}&application_name=mine")

    async with await connector.connect() as connection:
        text = await fetch_value(connection, "select '🎬' || current_setting('application_name')")

    assert text == "🎬mine"


@pytest.mark.parametrize(
    ("parameter", "reason"),
    [
        ("options=-c%20statement_timeout%3Dabc", 'invalid value for parameter "statement_timeout"'),
        ("options=nonsense", "invalid command-line argument for server process: nonsense"),
        ("options=--nonsense", "--nonsense requires a value"),
        ("replication=maybe", 'invalid value for parameter "replication"'),
        ("hostaddr=nonsense", 'could not parse network address "nonsense"'),
        ("sslmode=no-verify", 'invalid sslmode value: "no-verify"'),
        ("target_session_attrs=master", 'invalid target_session_attrs value: "master"'),
        ("channel_binding=yes", 'invalid channel_binding value: "yes"'),
        ("host=127.0.0.1&keepalives_idle=5s", 'invalid integer value "5s"'),
        ("service=none", 'definition of service "none" not found'),
    ],
)
async def test_a_value_that_is_refused_is_no_outage(
    make_connector: MakeConnector, database: str, parameter: str, reason: str
) -> None:
    """It would be refused for ever, so it stops the start."""
    connector = make_connector(f"{database}&{parameter}")

    with pytest.raises(OperatorError, match=f"the database's URL is wrong: .*{reason}"):
        await connector.connect()


@pytest.mark.parametrize("refuses", [True, False])
async def test_the_next_host_is_tried_when_one_cannot_be_reached(
    make_connector: MakeConnector, link: Link, other: Link, *, refuses: bool
) -> None:
    """It refuses, or is silent for `connect_timeout`; later connects do not wait for it again."""
    connector = make_connector(url_of_both(link, other), connect_timeout=0.5)
    await link.cut() if refuses else link.stall()

    async with await connector.connect(), await connector.connect() as connection:
        assert await fetch_value(connection) == 1

    assert link.connects == (0 if refuses else 1)
    assert other.connects == 2


@pytest.mark.parametrize("first", ["::1", "127.0.0.2"])
async def test_the_next_address_of_a_name_is_tried(
    make_connector: MakeConnector, link: Link, monkeypatch: Patch, first: str
) -> None:
    """As of `localhost`, if PostgreSQL listens on 127.0.0.1 only and ::1 comes first."""
    addresses = [(0, 0, 0, "", (address, 0)) for address in (first, "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)

    async with await make_connector(link.url_through("database.example", str(link.port))).connect():
        assert link.connects == 1


async def test_a_name_without_an_address_is_passed_over(
    make_connector: MakeConnector, link: Link
) -> None:
    """If no other host is left, the message has the name."""
    both = make_connector(link.url_through("no-such-host.invalid,127.0.0.1", str(link.port)))
    none = make_connector(link.url_through("no-such-host.invalid", str(link.port)))

    async with await both.connect():
        pass
    with pytest.raises(psycopg2.Error, match=r"the name no-such-host\.invalid has no address"):
        await none.connect()


async def test_target_session_attrs_holds_for_each_host(
    make_connector: MakeConnector, link: Link, other: Link
) -> None:
    """Neither host is a standby."""
    url = f"{url_of_both(link, other)}&target_session_attrs=standby"

    with pytest.raises(psycopg2.OperationalError, match="is not in hot standby mode"):
        await make_connector(url).connect()

    assert [link.connects, other.connects] == [1, 1]


async def test_a_connection_with_a_high_file_descriptor_may_break(
    make_connector: MakeConnector, database: str, execute: Execute
) -> None:
    """Although select(), which aiopg asks, refuses descriptors from 1,024 on."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    with ExitStack() as placeholders:
        while (placeholder := os.dup(0)) < 1024:
            placeholders.callback(os.close, placeholder)
        os.close(placeholder)

        async with await make_connector(database).connect() as connection:
            descriptor = connection.raw.fileno()
            execute("select pg_terminate_backend(%s, 5000)", connection.raw.info.backend_pid)
            await until(lambda: connection.closed)

    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert descriptor >= 1024
    assert failures == []


async def test_a_server_that_falls_silent_does_not_fail_what_has_ended(
    make_connector: MakeConnector, link: Link
) -> None:
    """A late timeout is waited for with a statement of its own, which may get no answer."""
    connection = await make_connector(link.url, 0.5).connect()
    link.stall()

    await absorb_late_timeout(connection)

    assert connection.closed


async def test_a_task_that_is_cancelled_during_a_statement_ends(
    make_connector: MakeConnector, database: str, execute: Execute
) -> None:
    """Also if PostgreSQL cancels the statement at the same moment."""
    async with await make_connector(database).connect() as connection, connection.cursor() as each:
        task = asyncio.create_task(each.execute("select pg_sleep(60)"))
        await asyncio.sleep(0)
        pid = connection.raw.info.backend_pid
        asleep = "select 1 from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
        while not execute(asleep, pid):  # before, PostgreSQL would ignore the cancel
            pass
        execute("select pg_cancel_backend(%s)", pid)
        select.select([connection.raw], [], [])  # the loop has not seen the response yet
        connection._ready(connection._weakref)  # noqa: SLF001 - the loop, seeing it
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task
