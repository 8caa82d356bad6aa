"""Opens connections of psycopg2 for commands, which run one statement at a time without asyncio."""

from typing import Any

import psycopg2

from service.database.driver_errors import describe_error
from service.database.urls import parse_url
from service.errors import OperatorError

Session = psycopg2.extensions.connection

CONNECT_TIMEOUT_S = 10  # for each host


def open_session(url: str, **options: Any) -> Session:
    """Open a connection that blocks until PostgreSQL responds; `options`: more for libpq."""
    given: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S} | parse_url(url) | options
    try:
        session: Session = psycopg2.connect(**{**given, "client_encoding": "UTF8"})
    except psycopg2.Error as error:
        reason = describe_error(error, details=True)
        raise OperatorError(f"the database is unreachable: {reason}") from None
    return session
