"""Tests database URLs: parsed as by libpq, shown without the password."""

import pytest

from service.database.connections import hide_password, parse_url
from service.errors import OperatorError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgres://me:p%40ss%2Fw%25@db.example:5433/movies?sslmode=require",
            "user=me password=p@ss/w% host=db.example port=5433 dbname=movies sslmode=require",
        ),
        ("postgresql:///movies?host=/run/postgresql", "dbname=movies host=/run/postgresql"),
        # Some platforms name users user@server.
        ("postgresql://me%40server:x@host/a", "user=me@server password=x host=host dbname=a"),
        # Characters in a password that libpq accepts.
        ("postgresql://me:sec:ret@host/a", "user=me password=sec:ret host=host dbname=a"),
        ("postgresql://me:sec?ret@host/a", "user=me password=sec?ret host=host dbname=a"),
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
        pytest.param("postgresql://me:sec/ret@host:5432/movies", id="slash"),
        pytest.param("postgresql://me:sec@ret@host:5432/movies", id="at sign"),
        pytest.param("postgresql://me:123/ret@host:5432/movies", id="digits and a slash"),
        pytest.param("postgresql://me:sec%ret@host:5432/movies", id="percent sign"),
        pytest.param("nonsense secret", id="no URL at all"),
        pytest.param("postgresql://me:secret@host/movies?secret=ret", id="unknown option"),
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
