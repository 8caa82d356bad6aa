"""Database URLs: read as libpq reads them, shown without the password."""

import pytest

from service.database import connections
from service.errors import OperatorError


def test_a_url_is_read_as_libpq_reads_it() -> None:
    """Every part of a URL gets libpq's name, with percent signs decoded."""
    given = connections.parse_url(
        "postgres://me:p%40ss%2Fw%25@db.example:5433/movies?sslmode=require"
    )

    assert given == {
        "user": "me",
        "password": "p@ss/w%",
        "host": "db.example",
        "port": "5433",
        "dbname": "movies",
        "sslmode": "require",
    }


def test_a_socket_is_a_host() -> None:
    """A URL without a host may name a socket's folder."""
    given = connections.parse_url("postgresql:///movies?host=/run/postgresql")

    assert given == {"dbname": "movies", "host": "/run/postgresql"}


def test_a_user_may_hold_an_at_sign() -> None:
    """Some platforms name users user@server."""
    given = connections.parse_url("postgresql://me%40server:x@host/movies")

    assert given["user"] == "me@server"


@pytest.mark.parametrize("password", ["sec:ret", "sec?ret", "sec#ret", "sec?r=t"])
def test_what_libpq_takes_is_taken(password: str) -> None:
    """Signs in a password that libpq does not trip over are taken as they stand."""
    given = connections.parse_url(f"postgresql://me:{password}@host:5432/movies")

    assert (given["password"], given["host"]) == (password, "host")


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
    """A password that is not escaped is refused with advice, and is not repeated."""
    with pytest.raises(OperatorError) as caught:
        connections.parse_url(url)

    message = str(caught.value)
    assert "expected postgresql://user:password@host:port/name" in message
    assert "%40" in message
    assert not any(part in message for part in ("sec/", "ret@", "secret", "sec%", "123"))


def test_the_password_does_not_show() -> None:
    """What is shown says which database it is, and leaves the password out."""
    text = connections.hide_password("postgresql://me:s3cret@db.example:5433/movies")

    assert "s3cret" not in text
    assert set(text.split()) == {
        *("user=me", "password=***", "host=db.example", "port=5433", "dbname=movies")
    }


def test_a_password_among_the_options_does_not_show() -> None:
    """A URL may carry the password behind its question mark too."""
    text = connections.hide_password("postgresql://me@db.example/movies?password=s3cret")

    assert "s3cret" not in text


def test_the_password_of_a_key_does_not_show() -> None:
    """The password of the client's TLS key is one as well."""
    text = connections.hide_password("postgresql://me@db.example/movies?sslpassword=s3cret")

    assert "s3cret" not in text
    assert "host=db.example" in text


def test_no_password_is_not_made_up() -> None:
    """Where there is none, none is shown."""
    text = connections.hide_password("postgresql://me@db.example/movies")

    assert "password" not in text
