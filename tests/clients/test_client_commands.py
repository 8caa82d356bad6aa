"""Tests `python -m service clients`: tokens that work, and commands that change all or nothing."""

import re

import pytest
from conftest import Start
from processes import run
from support import (
    SERVICE,
    Environment,
    Execute,
    add_client,
    bearer,
    hold,
    run_here,
    started,
    wait_until,
)

from service.clients.clients import hash_token

ALL = "select c::text from clients as c order by c.id"
TAKES_EFFECT = "every process of the service notices within 35 s"
IS_LOCKED = """
select 1 from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'
  and application_name like 'movie-catalogue %'
"""


def name_client(execute: Execute, name: str = "reports", **changes: str) -> str:
    """Insert a client of this name; return its token."""
    token = add_client(execute, "read", **changes)
    execute("update clients set name = %s where token_hash = %s", name, hash_token(token))
    return token


async def get_status(start: Start, token: str, method: str = "GET") -> int:
    """Return the status of a request with this token to a service that has cached none."""
    client = await start(access__anonymous="none")
    return (await client.request(method, "/v1/movies", headers=bearer(token))).status


async def test_a_token_of_add_has_the_scopes(
    environment: Environment, execute: Execute, start: Start
) -> None:
    """The token alone is on stdout, and only its hash in the database."""
    status, out, err = run_here(environment, "clients", "add", "Équipe 1", "--scopes", "read")
    _, writing, _ = run_here(
        environment, "clients", "add", "writer", "--scopes", " write,read,write"
    )

    token = out.removesuffix("\n")
    assert (status, out) == (0, f"{token}\n")
    assert err == 'added "Équipe 1" with id 1; its token is shown only now and never expires\n'
    assert await get_status(start, token) == 200
    assert await get_status(start, token, "POST") == 403
    assert await get_status(start, writing.removesuffix("\n"), "POST") == 400
    assert execute("select name, token_hash, scopes, expires_at from clients where id = 1") == [
        ("Équipe 1", hash_token(token), ["read"], None)
    ]
    assert execute("select scopes from clients where id = 2") == [(["read", "write"],)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("2200-01-31", "timestamptz '2200-01-31 UTC'"), ("90d", "now() + interval '90 days'")],
)
def test_a_client_expires(
    environment: Environment, execute: Execute, given: str, expected: str
) -> None:
    """At the start of a day in UTC, or after a duration."""
    words = ("clients", "add", "reports", "--scopes", "read", "--expires", given)
    _, _, err = run_here(environment, *words)

    ((difference, until),) = execute(
        f"select extract(epoch from {expected} - expires_at),"
        " to_char(expires_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI') from clients"
    )
    assert 0 <= difference < 60
    assert err.endswith(f" expires at {until} UTC\n")


EXPECTED_TIME = (
    "expected a duration like 90d, 12h, 30min or 10s, or a date like 2027-01-31 (until it starts in"
    " UTC)"
)
EXPECTED_NAME = "expected 1 to 100 printable characters, without a space at either end"
ADD = ("add", "a", "--scopes")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["add", "a"], "Missing option '--scopes'."),
        ([*ADD, "read,rad"], "'rad' is no scope: expected one or more of read,write,admin"),
        ([*ADD, "none"], "'none' is no scope: "),
        ([*ADD, ""], "'' is no scope: "),
        ([*ADD, "read", "--expires", "2020-01-31"], "'2020-01-31' is in the past"),
        ([*ADD, "read", "--expires", "0d"], "'0d' is in the past"),
        *(
            ([*ADD, "read", "--expires", wrong], f"{wrong!r}: {EXPECTED_TIME}")
            for wrong in ("", "soon", "2027-02-30", "2027-01-31T18:00", "90", "9999999d", "٣d")
        ),
        (["rotate", "a", "--grace", "1"], f"'1': {EXPECTED_TIME}"),
        *(
            (["add", name, "--scopes", "read"], f"{name!a}: {EXPECTED_NAME}")
            for name in ("", " a", "a ", "a\nb", "a\x1b[31m", "a\u202eb", "a" * 101, "a\udcff")
        ),
        (["revoke", "a\udcff"], EXPECTED_NAME),
    ],
)
def test_wrong_arguments_are_refused(words: list[str], problem: str) -> None:
    """The message says what is expected; the exit status is 2, and no database is used."""
    status, _, err = run_here({}, "clients", *words)

    assert status == 2
    assert problem in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "redirection"), [("rotate reports", ">/dev/full"), ("add new --scopes read", ">&-")]
)
def test_a_token_that_cannot_be_shown_changes_nothing(
    environment: Environment, execute: Execute, words: str, redirection: str
) -> None:
    """The disk is full, or stdout is closed."""
    name_client(execute)
    before = execute(ALL)

    command = f"exec {' '.join(SERVICE)} clients {words} {redirection}"
    _, _, err = run(["sh", "-c", command], environment)

    assert err == "Error: nothing was changed: the token cannot be written to stdout\n"
    assert execute(ALL) == before


async def test_a_grace_lets_the_former_token_work(
    environment: Environment, execute: Execute, start: Start
) -> None:
    """Until it ends: a second grace is refused; without one, all former tokens stop.

    Id, scopes and expiry stay.
    """
    first = name_client(execute, expires="2200-01-31")
    kept = "select id, name, scopes, expires_at, created_at from clients"
    as_added = execute(kept)

    _, out, err = run_here(environment, "clients", "rotate", "reports", "--grace", "1h")
    second = out.removesuffix("\n")
    ((until, is_right),) = execute(
        "select to_char(previous_expires_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI'),"
        " previous_expires_at - now() between interval '50 min' and interval '1 hour' from clients"
    )
    before = execute(ALL)
    again = run_here(environment, "clients", "rotate", "reports", "--grace", "1h")

    assert execute(ALL) == before
    assert is_right
    assert err == f'the former token of "reports" works until {until} UTC\n'
    assert [await get_status(start, token) for token in (first, second)] == [200, 200]
    assert again[:2] == (1, "")
    assert again[2].startswith('Error: the former token of "reports" works until ')
    assert again[2].endswith(", or rotate without --grace, which stops both tokens\n")
    execute("update clients set previous_expires_at = now()")
    assert [await get_status(start, token) for token in (first, second)] == [401, 200]
    execute("update clients set previous_expires_at = 'infinity'")
    status, out, err = run([*SERVICE, "clients", "rotate", "reports"], environment)
    third = out.removesuffix("\n")
    assert (status, out) == (0, f"{third}\n")
    assert err == f'the former token of "reports" is refused from now on: {TAKES_EFFECT}\n'
    assert [await get_status(start, token) for token in (first, second, third)] == [401, 401, 200]
    assert execute(kept) == as_added


def test_of_two_graces_at_once_one_is_refused(
    environment: Environment, database: str, execute: Execute
) -> None:
    """The second rotation waits for the first one, and then sees its grace."""
    name_client(execute)
    first = (
        "update clients set previous_token_hash = token_hash,"
        " previous_expires_at = now() + interval '1 hour', token_hash = repeat('1', 64)"
    )

    with (
        hold(database, first) as other,
        started(environment, "clients", "rotate", "reports", "--grace", "1h") as process,
    ):
        wait_until(lambda: execute(IS_LOCKED))
        other.commit()
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b'Error: the former token of "reports" works until ')
    assert execute("select token_hash from clients") == [("1" * 64,)]


async def test_a_revocation_refuses_all_tokens(
    environment: Environment, execute: Execute, start: Start
) -> None:
    """Also the former one; a second revocation keeps the time of the first."""
    old = name_client(execute)
    _, out, _ = run_here(environment, "clients", "rotate", "reports", "--grace", "1h")
    new = out.removesuffix("\n")

    revoked = run_here(environment, "clients", "revoke", "reports")
    at = execute("select revoked_at from clients")
    again = run_here(environment, "clients", "revoke", "reports")

    assert revoked == again == (0, "", f'revoked "reports": {TAKES_EFFECT}\n')
    assert [await get_status(start, token) for token in (old, new)] == [401, 401]
    assert execute("select revoked_at from clients") == at


TAKEN = 'the name "reports" is taken: choose another one; see python -m service clients list'
NOBODY = 'no client is called "nobody": see python -m service clients list'
ENDED = (
    '"reports" was revoked or expired at 2026-01-31 00:00 UTC:'
    " restore it in SQL first (docs/dbas.md), or add a new client"
)


@pytest.mark.parametrize(
    ("words", "before", "problem"),
    [
        (["add", "reports", "--scopes", "read"], "select 1", TAKEN),
        (["rotate", "nobody"], "select 1", NOBODY),
        (["revoke", "nobody"], "select 1", NOBODY),
        (["rotate", "reports"], "update clients set revoked_at = '2026-01-31 UTC'", ENDED),
        (["rotate", "reports"], "update clients set expires_at = '2026-01-31 UTC'", ENDED),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(
    environment: Environment, execute: Execute, words: list[str], before: str, problem: str
) -> None:
    """The exit status is 1, and the line says what to do."""
    name_client(execute)
    execute(before)
    rows = execute(ALL)

    assert run_here(environment, "clients", *words) == (1, "", f"Error: {problem}\n")
    assert execute(ALL) == rows


def test_the_list(environment: Environment, execute: Execute) -> None:
    """It has every client without hashes, and no characters that control a terminal."""
    add_client(execute, "read", "write", expires="2200-01-31 UTC")
    add_client(execute, "read", revoked="2026-01-31 12:00 UTC")
    execute(
        "update clients set name = case id when 1 then 'b' else E'a\\u202e' end,"
        " last_used_on = case id when 1 then date '2026-02-01' end, created_at = '2026-01-01 UTC',"
        " previous_token_hash = token_hash, previous_expires_at ="
        " case id when 1 then '2199-12-31 23:59:30 UTC' else '2026-01-01 UTC' end::timestamptz"
    )

    status, out, err = run_here(environment, "clients", "list")

    assert (status, err) == (0, "")
    assert [",".join(re.split(" {2,}", line)) for line in out.splitlines()] == [
        "id,name,scopes,expires at,revoked at,former token until,last used on,created on",
        r"2,'a\u202e',read,infinity,2026-01-31 12:00,-,-,2026-01-01",
        "1,b,read,write,2200-01-31 00:00,-,2199-12-31 23:59,2026-02-01,2026-01-01",
    ]
