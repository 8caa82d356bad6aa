"""Tests database URLs: parsed as by libpq, shown without the password."""

from dataclasses import replace

import pytest
from conftest import ROOT
from structlog.testing import capture_logs

from service import config
from service.database.urls import check_tls, hide_password, list_servers, parse_url
from service.errors import OperatorError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgres://me:p%40ss%2Fw%25@db.example:5433/movies?sslmode=require",
            "user=me password=p@ss/w% host=db.example port=5433 dbname=movies sslmode=require",
        ),
        ("postgresql:///movies?host=/run/postgresql", "dbname=movies host=/run/postgresql"),
        ("postgresql://u@%2Frun%2Fpostgresql/d", "user=u host=/run/postgresql dbname=d"),
        ("postgresql://u@[::1]:5432/d", "user=u host=::1 port=5432 dbname=d"),
        ("postgresql://u@h1:5432,h2:5433/d", "user=u host=h1,h2 port=5432,5433 dbname=d"),
        # Some platforms name users user@server.
        ("postgresql://me%40server:x@host/a", "user=me@server password=x host=host dbname=a"),
        # Characters in a password that libpq accepts.
        (
            "postgresql://me@host/a?application_name=me@x",
            "user=me host=host dbname=a application_name=me@x",
        ),
        ("postgresql://me:sec:ret@host/a", "user=me password=sec:ret host=host dbname=a"),
        ("postgresql://me:sec#ret@host/a", "user=me password=sec#ret host=host dbname=a"),
        ("postgresql://me:sec?r=t@host/a", "user=me password=sec?r=t host=host dbname=a"),
    ],
)
def test_a_url_is_read_as_libpq_reads_it(url: str, expected: str) -> None:
    """Every part of a URL gets libpq's name, with percent signs decoded."""
    assert parse_url(url) == dict(part.split("=", 1) for part in expected.split())


@pytest.mark.parametrize(
    "url",
    [
        *(
            f"postgresql://me:{password}@host:5432/movies"
            for password in ("sec/ret", "sec@ret", "123/ret", "sec%ret")
        ),
        "postgresql://me:p/w?secret=ret@host/movies",  # the password's end looks like a parameter
        "nonsense secret",
    ],
)
def test_a_url_that_cannot_be_read_does_not_show(url: str) -> None:
    """A password that is not escaped is refused; the message has advice, but not the password."""
    with pytest.raises(OperatorError) as caught:
        parse_url(url)

    message = str(caught.value)
    assert "expected postgresql://user:password@host:port/name" in message
    assert "%40" in message
    assert not any(part in message for part in ("sec/", "ret@", "secret", "sec%", "123"))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:s3cret@host:1/a", "user=me password=*** host=host port=1 dbname=a"),
        ("postgresql://me@host/a?password=s3cret", "user=me host=host dbname=a password=***"),
        # The password of the client's TLS key.
        ("postgresql://me@host/a?sslpassword=s3cret", "user=me host=host dbname=a sslpassword=***"),
        ("postgresql://me@host/a", "user=me host=host dbname=a"),
    ],
)
def test_the_password_does_not_show(url: str, shown: str) -> None:
    """The shown text identifies the database, without passwords."""
    assert set(hide_password(url).split()) == set(shown.split())


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ("schema=public", 'the parameter "schema", which libpq does not know: remove it'),
        ("pgbouncer=true", 'the parameter "pgbouncer", which libpq does not know: remove it'),
        ("ssl-mode=require", 'the parameter "ssl-mode", which libpq does not know: remove it'),
        ("pgbouncer", 'the parameter "pgbouncer", expected name=value'),
        ("options=-c%20work_mem=1", 'the parameter "options", expected name=value, with = in'),
        ("port=5432x", "must be a number from 1 to 65535"),
    ],
)
def test_a_wrong_parameter_is_named(parameters: str, problem: str) -> None:
    """Before anything connects."""
    with pytest.raises(OperatorError) as caught:
        parse_url(f"postgresql://me:s3cret@h/d?{parameters}")

    assert problem in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("postgresql:///a", [{}]),
        ("postgresql://x,y:1/a", [{"host": "x", "port": ""}, {"host": "y", "port": "1"}]),
        (
            "postgresql:///a?host=x,/run&port=1",
            [{"host": "x", "port": "1"}, {"host": "/run", "port": "1"}],
        ),
    ],
)
def test_servers_are_listed_in_the_order_of_the_url(
    url: str, servers: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single port is for all hosts."""
    for name in ("PGHOST", "PGHOSTADDR", "PGPORT"):
        monkeypatch.delenv(name, raising=False)

    assert list_servers(parse_url(url)) == servers


def test_servers_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """In libpq's variables; the URL comes first."""
    monkeypatch.setenv("PGHOST", "x,y")
    monkeypatch.setenv("PGPORT", "1,2")

    assert list_servers(parse_url("postgresql:///a?port=3")) == [
        {"host": "x", "port": "3"},
        {"host": "y", "port": "3"},
    ]


def test_as_many_ports_as_hosts_are_expected() -> None:
    """Or one port."""
    with pytest.raises(OperatorError, match="2 of host, 3 of port: expected as many of each"):
        list_servers(parse_url("postgresql:///a?host=x,y&port=1,2,3"))


REMOTE = "postgresql://me:s3cret@db.example/a"


def check(url: str, *, require_tls: bool) -> list[str]:
    """Check a URL and return the events that are logged."""
    settings = config.load(ROOT / "config.toml", {"DATABASE_URL": url}).database
    with capture_logs() as entries:
        check_tls(replace(settings, require_tls=require_tls))
    assert "s3cret" not in str(entries)
    return [entry["event"] for entry in entries]


@pytest.mark.parametrize("mode", ["", "prefer", "allow", "disable"])
def test_a_password_without_tls_is_warned_of(mode: str) -> None:
    """Or refused, with the remedy; libpq's default does not protect it."""
    url = f"{REMOTE}?sslmode={mode}" if mode else REMOTE

    events = check(url, require_tls=False)
    with pytest.raises(OperatorError, match=r"add \?sslmode=verify-full"):
        check(url, require_tls=True)

    assert events == ["database without TLS"]


@pytest.mark.parametrize(
    "url",
    [
        f"{REMOTE}?sslmode=require",
        f"{REMOTE}?sslmode=verify-full",
        f"{REMOTE}?hostaddr=127.0.0.1",
        "postgresql://me:s3cret@localhost,127.0.0.2,[::1]/a",
        "postgresql://me@/a?host=/run/postgresql",
    ],
)
def test_tls_or_no_network_needs_no_warning(url: str) -> None:
    """A socket and the addresses of this machine are no network."""
    assert check(url, require_tls=True) == []
