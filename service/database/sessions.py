"""A plain connection of a command, which blocks until PostgreSQL answers; for migrations and plans.

Whatever goes wrong reaches operators as one line.
"""

from typing import Any

import psycopg2
from psycopg2.extensions import connection as Session  # noqa: N812 (a class, whatever its case)

from service.database.urls import parameters
from service.errors import OperatorError


def open_session(url: str, **options: Any) -> Session:
    """Connect, with more of libpq's `options`; `OperatorError` where that fails.

    The URL holds a password: no message repeats the URL or what could not be read of it.
    """
    given = {"connect_timeout": 10} | parameters(url) | options | {"client_encoding": "utf8"}
    try:
        session: Session = psycopg2.connect(**given)
    except psycopg2.Error as error:
        raise OperatorError(f"the database is out of reach: {words(error)}") from None
    return session


def words(error: BaseException) -> str:
    """Say in one line what PostgreSQL or the driver said."""
    error = origin(error)
    diagnosis = error.diag if isinstance(error, psycopg2.Error) else None
    parts = (
        [diagnosis.message_primary, diagnosis.message_detail, diagnosis.message_hint]
        if diagnosis and diagnosis.message_primary
        else [str(error)]
    )
    return " ".join("; ".join(part.rstrip(".\n") for part in parts if part).split())


def origin(error: BaseException) -> BaseException:
    """Find what the driver said: cleaning up after a lost connection fails in words of its own."""
    while not isinstance(error, psycopg2.Error) and (inner := error.__cause__ or error.__context__):
        error = inner
    return error
