"""Opens connections of psycopg2 for commands, which run one statement at a time without asyncio."""

import select
from math import inf
from time import monotonic
from typing import Any

import psycopg2
from psycopg2.extensions import POLL_OK, POLL_READ

from service.database.connections import application_name
from service.database.driver_errors import describe_error, join_failures, make_timeout_error
from service.database.urls import list_addresses, parse_url
from service.errors import OperatorError

Session = psycopg2.extensions.connection

CONNECT_TIMEOUT_S = 10  # for each host
SIGNAL_CHECK_S = 1.0  # a signal just before select() does not wake it


def open_session(url: str, **options: Any) -> Session:
    """Open a connection that blocks until PostgreSQL responds; `options`: more for libpq."""
    given: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S} | parse_url(url) | options
    try:
        session: Session = psycopg2.connect(**{**given, "client_encoding": "UTF8"})
    except psycopg2.Error as error:
        raise _make_unreachable_error(error) from None
    return session


def open_polled_session(url: str, **options: Any) -> Session:
    """Open a connection that does not block: `wait` until a statement has ended."""
    given: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S} | parse_url(url) | options
    fixed = {"application_name": application_name(), "client_encoding": "UTF8", "async_": True}
    failures: list[psycopg2.Error] = []
    try:
        for address in list_addresses(given):
            try:
                session: Session = psycopg2.connect(**{**given, **address, **fixed})
                wait(session, seconds=float(given["connect_timeout"]) or inf)
            except TimeoutError:
                failures.append(make_timeout_error(address))
            except psycopg2.Error as error:
                failures.append(error)
            else:
                return session
    except (psycopg2.Error, ValueError) as error:
        raise _make_unreachable_error(error) from None
    raise _make_unreachable_error(join_failures(failures)) from None


def wait(session: Session, states: tuple[int, ...] = (POLL_OK,), *, seconds: float = inf) -> None:
    """Wait until a polled session is in one of these states; Ctrl-C interrupts it."""
    deadline = monotonic() + seconds
    while (state := session.poll()) not in states:
        if monotonic() >= deadline:
            raise TimeoutError("timeout expired")
        # Pass the session each time: libpq opens another socket for the next address.
        reading = [session] if state == POLL_READ else []
        writing = [] if reading else [session]
        select.select(reading, writing, [], min(SIGNAL_CHECK_S, seconds))


def _make_unreachable_error(error: BaseException) -> OperatorError:
    return OperatorError(f"the database is unreachable: {describe_error(error, details=True)}")
