"""Parses a database's URL: its servers and their addresses, and whether it requires TLS.

No message repeats the URL, or a part of it that cannot be read: it may hold a password.
https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING-URIS
"""

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from functools import lru_cache

import psycopg2
import structlog
from psycopg2.extensions import make_dsn, parse_dsn

from service.config import Database
from service.errors import OperatorError

Address = Mapping[str, str]  # libpq's parameters that name one server, or one address of it

NO_ADDRESS = "255.255.255.255"  # the system refuses it at once: nothing is sent
REFERENCE = "https://www.postgresql.org/docs/current/libpq-connect.html"
WRONG_PARAMETER = re.compile(r'(invalid|separator "=" in) URI query parameter: "(.+)"')
# libpq looks at these while it connects.
NUMBERS = {
    "connect_timeout",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "tcp_user_timeout",
}

log = structlog.get_logger()


def parse_url(url: str) -> dict[str, str]:
    """Return what the URL says, by libpq's names; `OperatorError` if it cannot be read."""
    try:
        given: dict[str, str] = parse_dsn(url)
    except psycopg2.ProgrammingError as error:
        wrong = WRONG_PARAMETER.search(str(error))
        if wrong and "@" not in url.partition("?")[2]:  # otherwise it is part of a password
            remedy = "expected name=value, with = in the value written as %3D"
            if wrong[1] == "invalid":
                remedy = "which libpq does not know: remove it"
            raise OperatorError(
                f'the database\'s URL has the parameter "{wrong[2]}", {remedy} ({REFERENCE})'
            ) from None
        given = {"host": "@"}  # refused below
    # Part of a password that is not escaped ends up as the host, the port or the database's name,
    # which libpq's messages repeat.
    if any("@" in given.get(key, "") for key in ("host", "hostaddr", "port", "dbname")):
        raise OperatorError(
            "the database's URL cannot be read: expected postgresql://user:password@host:port/name,"
            " with @ : / ? # % in the password or a parameter written as %40 %3A %2F %3F %23 %25"
        )
    _check_values(url)
    return given


@lru_cache
def _check_values(url: str) -> None:
    """Raise `OperatorError` for a value that libpq refuses, such as `sslmode=no-verify`.

    libpq checks all but numbers before it connects, here to an address that nobody has.
    """
    given = parse_dsn(url)
    ports = [port for port in given.get("port", "").split(",") if port]
    if not all(port.isdecimal() and 0 < int(port) < 65536 for port in ports):  # noqa: PLR2004
        raise OperatorError("the port of the database's URL must be a number from 1 to 65535")
    for name in NUMBERS & given.keys():
        if not re.fullmatch("-?[0-9]{1,9}", given[name]):
            what = f"{name}={given[name]}: expected a whole number"
            raise OperatorError(f"the database's URL has {what}")
    try:
        psycopg2.connect(**{**given, "host": "", "hostaddr": NO_ADDRESS, "port": "1"})
    except psycopg2.OperationalError as error:
        if not str(error).startswith("connection to server"):
            what = f"the database's URL is wrong: {str(error).strip()}"
            raise OperatorError(f"{what}; expected a value of {REFERENCE}") from None


def hide_password(url: str) -> str:
    """Describe the database of this URL, without passwords."""
    given = parse_url(url)
    hidden = {name: "***" for name in given if "password" in name}  # sslpassword too
    return str(make_dsn(**{**given, **hidden}))


def name_server(url: str) -> str:
    """Return the host and port of a URL, for people."""
    given = {"host": "localhost", "port": "5432"} | parse_url(url)
    return f"{given['host']}:{given['port']}"


def list_servers(given: Mapping[str, object]) -> list[Address]:
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


def list_addresses(given: Mapping[str, object]) -> list[Address]:
    """List the servers of a parsed URL, each once for each of its addresses; may block.

    With `host` and `hostaddr`, libpq looks nothing up, and TLS still checks the name. A name that
    is not found is left out; if none is found, raises psycopg2.OperationalError.
    """
    addresses: list[Address] = []
    failure = None
    for server in list_servers(given):
        host = server.get("host", "")
        if server.get("hostaddr") or not host or host.startswith(("/", "@")):
            addresses.append(server)
            continue
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            failure = psycopg2.OperationalError(f"the name {host} has no address: {error}")
        else:
            addresses += [{**server, "hostaddr": str(address[0])} for *_, address in found]
    if failure and not addresses:
        raise failure
    return addresses


def check_tls(settings: Database) -> None:
    """Warn if the password may cross a network without TLS; `OperatorError` with `require_tls`.

    With `prefer`, libpq's default, anyone who can change packets can turn TLS off.
    https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-PROTECTION
    """
    given = parse_url(settings.url)
    mode = _find_parameter(given, "sslmode") or "prefer"
    is_required = mode not in ("disable", "allow", "prefer")
    if is_required or all(is_local(server) for server in list_servers(given)):
        return
    reason = f"the password of the database may cross a network without TLS (sslmode={mode})"
    remedy = "add ?sslmode=verify-full to the database's URL"
    if settings.require_tls:
        raise OperatorError(f"{reason}: {remedy}, or set [database] require_tls = false")
    log.warning("database without TLS", reason=reason, remedy=remedy)


def is_local(server: Address) -> bool:
    """Whether the server is on this machine: a Unix socket or a loopback address."""
    host = server.get("hostaddr") or server.get("host", "")
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _find_parameter(given: Mapping[str, object], name: str) -> str:
    variable = f"PG{name.replace('_', '').upper()}"
    return str(given.get(name, os.environ.get(variable, "")))
