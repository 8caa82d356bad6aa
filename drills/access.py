"""Clients whose tokens end while they are used, and a flood of unknown tokens."""

import asyncio
import re
import urllib.request
from collections import defaultdict

from drills.client import Connection
from drills.lab import Checks, Lab, NotRun, drill
from drills.processes import find_free_port
from drills.proxies import start_pgbouncer
from service.access.tokens import hash_token, make_token

BATCH = 8  # connections that are opened together
BATCHES_MAX = 20  # until both workers have some
TAKES_EFFECT_S = 35.0
POLL_S = 0.25
FLOOD_TOKENS = 2000
FLOOD_CONNECTIONS = 64
LOOKUPS = re.compile(
    r'^catalogue_statement_duration_seconds_count\{query="get_clients"\} ([0-9.e+]+)', re.MULTILINE
)


def add_client(lab: Lab, database: str, name: str) -> str:
    """Add a client that may read; return its token."""
    sql = (
        "insert into clients (name, token_hash, scopes) values (%s, repeat('0', 64), '{read}')"
        " returning id"
    )
    ((client_id,),) = lab.postgres.execute(database, sql, name)
    return rotate_token(lab, database, client_id)


def rotate_token(lab: Lab, database: str, client_id: int) -> str:
    """Replace a client's token, without grace; return the new one."""
    token = make_token(client_id)
    sql = "update clients set token_hash = %s where id = %s"
    lab.postgres.execute(database, sql, hash_token(token), client_id)
    return token


async def ask(connection: Connection, token: str) -> tuple[int, str]:
    """Get a movie with this token; return the status, and which worker responded."""
    headers = {"Authorization": f"Bearer {token}"}
    response = await connection.request("GET", "/v1/movies/1", headers=headers)
    return response.status, response.headers["x-request-id"].partition("-")[0]


async def connect_to_workers(url: str, workers: int, token: str) -> list[Connection]:
    """Return connections that have reached so many workers with this token."""
    connections: list[Connection] = []
    reached: set[str] = set()
    for _ in range(BATCHES_MAX):
        batch = [Connection(url) for _ in range(BATCH)]
        connections += batch
        reached |= {worker for _, worker in await asyncio.gather(*(ask(c, token) for c in batch))}
        if len(reached) == workers:
            return connections
        await asyncio.sleep(POLL_S)
    raise RuntimeError(f"{len(connections)} connections have reached {len(reached)} workers")


def count_lookups(port: int) -> int:
    """Return how many statements have looked clients up."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        found = LOOKUPS.search(response.read().decode())
    return int(float(found[1])) if found else 0


async def flood(url: str) -> set[int]:
    """Send as many unknown tokens, each one once; return the statuses."""
    tokens = iter([make_token(1) for _ in range(FLOOD_TOKENS)])

    async def send() -> set[int]:
        connection = Connection(url)
        statuses = {(await ask(connection, token))[0] for token in tokens}
        connection.close()
        return statuses

    return set().union(*await asyncio.gather(*(send() for _ in range(FLOOD_CONNECTIONS))))


@drill(
    "Two workers (behind PgBouncer in transaction mode, where it is installed), and three clients"
    " in use on both. One is revoked, one gets another token. Then 2,000 unknown tokens on 64"
    " connections.",
    "Both old tokens are 401 on both workers after at most 35 s, the others never. All unknown ones"
    " are 401, and cost at most a quarter as many statements.",
)
async def revoked_clients(lab: Lab, checks: Checks) -> None:
    """Revocation and rotation under gunicorn."""
    database = lab.database()
    try:
        _, _, url = start_pgbouncer(lab, database)
    except NotRun as reason:
        checks.note(str(reason))
        url = lab.postgres.url(database)
    revoked, rotated, other = (add_client(lab, database, name) for name in "abc")
    port = find_free_port()
    settings = {"access_anonymous": "none", "operations_port": port}
    service = await lab.serve(url, workers=2, settings=settings)
    connections = await connect_to_workers(service.url, 2, other)
    first = {(await ask(each, token))[0] for token in (revoked, rotated) for each in connections}
    checks.require(first == {200}, "all tokens are valid at first")

    loop = asyncio.get_running_loop()
    lab.postgres.execute(database, "update clients set revoked_at = now() where name = 'a'")
    replacing = rotate_token(lab, database, 2)
    started = loop.time()
    last_used: dict[tuple[str, str], float] = defaultdict(float)  # by token's kind and worker
    refused = set()
    while loop.time() < started + TAKES_EFFECT_S + 1:
        for connection in connections:
            for kind, token in (("revoked", revoked), ("rotated", rotated)):
                status, worker = await ask(connection, token)
                if status != 401:
                    last_used[kind, worker] = loop.time() - started
            refused |= {(await ask(connection, token))[0] for token in (replacing, other)}
        await asyncio.sleep(POLL_S)
    figures = [f"{kind}: {last:.1f} s" for (kind, _), last in sorted(last_used.items())]
    is_in_time = all(last <= TAKES_EFFECT_S for last in last_used.values())
    checks.require(is_in_time and len(last_used) == 4, f"last accepted: {', '.join(figures)}")
    checks.require(refused == {200}, f"the others: {sorted(refused)}")

    before = count_lookups(port)
    statuses = await flood(service.url)
    lookups = count_lookups(port) - before
    checks.require(statuses == {401}, f"unknown tokens: {sorted(statuses)}")
    checks.require(lookups <= FLOOD_TOKENS / 4, f"{FLOOD_TOKENS} cost {lookups} statements")
    after = {(await ask(each, other))[0] for each in connections}
    checks.require(after == {200}, f"the other client after it: {sorted(after)}")
    await service.stop()
