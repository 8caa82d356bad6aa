"""Database URLs, as libpq reads them; a password never shows in what this says.

https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS
"""

import os
from typing import Any

import psycopg2
from psycopg2.extensions import make_dsn, parse_dsn

from service import __version__
from service.errors import OperatorError


def parameters(url: str) -> dict[str, Any]:
    """Return what the URL says, by libpq's names; `OperatorError` where it cannot be read."""
    try:
        given: dict[str, Any] = parse_dsn(url)
    except psycopg2.ProgrammingError:
        given = {"host": "@"}
    # Part of a password that is not escaped ends up as the host, the port or the database's name,
    # which libpq's messages repeat.
    if any("@" in value for key, value in given.items() if key not in ("user", "password")):
        raise OperatorError(
            "the database's URL cannot be read: expected postgresql://user:password@host:port/name,"
            " with @ : / ? # % in the password written as %40 %3A %2F %3F %23 %25"
        )
    return given


def shown(url: str) -> str:
    """Say which database this is, without the password."""
    given = parameters(url)
    hidden = {name: "***" for name in given if "password" in name}  # sslpassword too
    return str(make_dsn(**{**given, **hidden}))


def application_name() -> str:
    """Name this process, as pg_stat_activity and the server's log show it."""
    return f"movie-catalogue {__version__} {os.getpid()}"
