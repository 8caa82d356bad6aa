"""Parses a database's URL: its servers, and whether its password may cross a network without TLS.

No message repeats the URL, or a part of it that cannot be read: it may hold a password.
https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS
"""

import ipaddress
import os
import re
from collections.abc import Mapping

import psycopg2
import structlog
from psycopg2.extensions import make_dsn, parse_dsn

from service.config import Database
from service.errors import OperatorError

ServerAddress = Mapping[str, str]  # libpq's parameters of one server: host, hostaddr, port

MAX_PORT = 65_535
LIBPQ_REFERENCE = "https://www.postgresql.org/docs/current/libpq-connect.html"
WRONG_PARAMETER = re.compile(r'(invalid|separator "=" in) URI query parameter: "(.+)"')
UNREADABLE_URL = (
    "the database's URL cannot be read: expected postgresql://user:password@host:port/name,"
    " with @ : / ? # % in the password or a parameter written as %40 %3A %2F %3F %23 %25"
)

log = structlog.get_logger()


def parse_url(url: str) -> dict[str, str]:
    """Return what the URL says, by libpq's names; `OperatorError` if it cannot be read."""
    try:
        given: dict[str, str] = parse_dsn(url)
    except psycopg2.ProgrammingError as error:
        wrong = WRONG_PARAMETER.search(str(error))
        if not wrong or "@" in url.partition("?")[2]:  # it is part of a password
            raise OperatorError(UNREADABLE_URL) from None
        remedy = "expected name=value, with = in the value written as %3D"
        if wrong[1] == "invalid":
            remedy = "which libpq does not know: remove it"
        what = f'the database\'s URL has the parameter "{wrong[2]}", {remedy} ({LIBPQ_REFERENCE})'
        raise OperatorError(what) from None
    # Part of a password that is not escaped ends up in these, and libpq's messages repeat them.
    if any("@" in given.get(key, "") for key in ("host", "hostaddr", "port", "dbname")):
        raise OperatorError(UNREADABLE_URL)
    ports = [port for port in given.get("port", "").split(",") if port]
    if not all(port.isdecimal() and 0 < int(port) <= MAX_PORT for port in ports):
        raise OperatorError(f"the port of the database's URL must be a number from 1 to {MAX_PORT}")
    return given


def hide_password(url: str) -> str:
    """Describe the database of this URL, without passwords."""
    given = parse_url(url)
    hidden = {name: "***" for name in given if "password" in name}  # sslpassword too
    return str(make_dsn(**{**given, **hidden}))


def name_server(url: str) -> str:
    """Return the host and port of a URL, for people."""
    given = {"host": "localhost", "port": "5432"} | parse_url(url)
    return f"{given['host']}:{given['port']}"


def list_servers(given: Mapping[str, object]) -> list[ServerAddress]:
    """List the servers of a parsed URL, or of libpq's environment, in the order to be tried.

    https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-MULTIPLE-HOSTS
    """
    lists = {
        name: text.split(",")
        for name in ("host", "hostaddr", "port")
        if (text := _find_parameter(given, name))
    }
    number = len(lists.get("hostaddr") or lists.get("host") or [""])
    if len(lists.get("port", [])) == 1:
        lists["port"] *= number
    if any(len(values) != number for values in lists.values()):
        counts = ", ".join(f"{len(values)} of {name}" for name, values in lists.items())
        raise OperatorError(f"the database's URL lists {counts}: expected as many of each")
    return [{name: values[index] for name, values in lists.items()} for index in range(number)]


def is_socket(server: ServerAddress) -> bool:
    """Whether the server listens on a Unix socket, so that there is no name to look up."""
    host = server.get("hostaddr") or server.get("host", "")
    return not host or host.startswith(("/", "@"))


def check_tls(settings: Database) -> None:
    """Warn if the password may cross a network without TLS; `OperatorError` with `require_tls`.

    With `prefer`, libpq's default, anyone who can change packets can turn TLS off.
    https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-PROTECTION
    """
    given = parse_url(settings.url)
    mode = _find_parameter(given, "sslmode") or "prefer"
    is_required = mode not in ("disable", "allow", "prefer")
    if is_required or all(_is_local(server) for server in list_servers(given)):
        return
    reason = f"the password of the database may cross a network without TLS (sslmode={mode})"
    remedy = "add ?sslmode=verify-full to the database's URL"
    if settings.require_tls:
        raise OperatorError(f"{reason}: {remedy}, or set [database] require_tls = false")
    log.warning("database without TLS", reason=reason, remedy=remedy)


def _is_local(server: ServerAddress) -> bool:
    """Whether the server is on this machine: a Unix socket or a loopback address."""
    host = server.get("hostaddr") or server.get("host", "")
    if is_socket(server) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _find_parameter(given: Mapping[str, object], name: str) -> str:
    """Return a parameter of the URL, or of libpq's environment."""
    variable = f"PG{name.replace('_', '').upper()}"
    return str(given.get(name, os.environ.get(variable, "")))
