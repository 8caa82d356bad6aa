"""Tests the SQL about clients in docs/dbas.md, as a DBA runs it."""

import re

import psycopg2
import pytest
from conftest import ROOT, Client, Start
from support import Execute, add_client, bearer

from service.clients.clients import hash_token, parse_token


def read_statements() -> list[str]:
    """Return the statements of the section."""
    section = (ROOT / "docs/dbas.md").read_text().split("\n## Clients\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    return [text.strip() for block in blocks for text in block.split(";") if text.strip()]


def find_statement(text: str) -> str:
    """Return the only statement that contains this text."""
    (found,) = [statement for statement in read_statements() if text in statement]
    return found


@pytest.fixture
async def closed(start: Start) -> Client:
    """A client of a service that requires tokens."""
    return await start(access__anonymous="none")


async def test_sql_mints_tokens(closed: Client, execute: Execute) -> None:
    """Each is another one, belongs to the new row, and has its scopes."""
    mint = find_statement("insert into clients")
    ((first,),) = execute(mint)
    ((token,),) = execute(mint.replace("nightly import", "hourly import"))

    assert (parse_token(first), parse_token(token)) == (1, 2)
    assert first[5:42] != token[5:42]
    stored = execute("select id, name, token_hash, scopes, expires_at > now() from clients")
    assert stored == [
        (1, "nightly import", hash_token(first), ["read", "write"], True),
        (2, "hourly import", hash_token(token), ["read", "write"], True),
    ]
    assert (await closed.get("/v1/movies", headers=bearer(token))).status == 200
    assert (await closed.post("/v1/movies", headers=bearer(token))).status == 400


@pytest.mark.parametrize(
    ("change", "column", "changed"),
    [
        ("set scopes =", "scopes", ["read", "write"]),
        ("set expires_at =", "expires_at = '2200-01-31 UTC'", True),
        ("set name =", "name", "sales reports"),
        ("set revoked_at = now()", "revoked_at between now() - interval '1 min' and now()", True),
    ],
)
def test_sql_changes_a_client(execute: Execute, change: str, column: str, changed: object) -> None:
    """And no other one."""
    for name in ("'reports'", "'sales reports'", "'other'"):
        add_client(execute, "read")
        execute(f"update clients set name = {name} where id = (select max(id) from clients)")
    name = "sales reports" if "revoked" in change else "reports"
    execute("delete from clients where name in ('reports', 'sales reports') and name <> %s", name)
    others = "select c::text from clients as c where name = 'other'"
    before = execute(others)

    execute(find_statement(change))

    assert execute(f"select {column} from clients where name <> 'other'") == [(changed,)]
    assert execute(others) == before


async def test_sql_restores_a_client_without_its_old_tokens(
    closed: Client, execute: Execute
) -> None:
    """Somebody may know them."""
    token = add_client(execute, "read", revoked="2026-01-31")
    execute(
        "update clients set name = 'sales reports', previous_token_hash = token_hash,"
        " previous_expires_at = 'infinity'"
    )

    execute(find_statement("set revoked_at = null"))

    assert execute("select revoked_at from clients") == [(None,)]
    assert (await closed.get("/v1/movies", headers=bearer(token))).status == 401


@pytest.mark.parametrize("scopes", ["{}", "{read,x}"])
def test_a_client_has_known_scopes(execute: Execute, scopes: str) -> None:
    """At least one: without any, its token would be refused everywhere."""
    add_client(execute, "read")

    with pytest.raises(psycopg2.errors.CheckViolation, match="clients_scopes_are_known"):
        execute("update clients set scopes = %s", scopes)


def test_sql_lists_clients_as_the_reader(execute: Execute) -> None:
    """The statement in docs/dbas.md reads no hash of a token."""
    add_client(execute, "read")

    statement = find_statement("order by name")

    assert "hash" not in statement
    assert len(execute(statement)) == 1
