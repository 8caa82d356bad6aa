"""A crowd of clients in a process of its own: it does not slow down those that are measured.

    python -m drills.flood URL CLIENTS SECONDS METHOD BODY PATH...

Each client sends its next request when it has its response. CLIENTS with a + before: each sends one
request, all at once. The output is the number of responses by status, as JSON.
"""

import asyncio
import json
import sys
from collections import Counter

from drills.client import Connection, NoResponse, NotConnected

RETRY_S = 0.1


async def flood(  # noqa: PLR0913 - its command line has as many
    url: str,
    *,
    clients: int,
    once: bool,
    seconds: float,
    method: str,
    body: object,
    paths: list[str],
) -> Counter[str]:
    """Send the requests; return the number of responses by status."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    statuses: Counter[str] = Counter()

    async def run(number: int) -> None:
        connection = Connection(url)
        while loop.time() < end:
            try:
                path = paths[number % len(paths)]
                response = await connection.request(method, path, body)
                statuses[str(response.status)] += 1
                if response.status >= 500:
                    await asyncio.sleep(RETRY_S)
            except (NoResponse, NotConnected):
                statuses["no response"] += 1
                await asyncio.sleep(RETRY_S)
            number += clients
            if once:
                break
        connection.close()

    await asyncio.gather(*(run(number) for number in range(clients)))
    return statuses


def main() -> None:
    """Read the arguments, print the statuses."""
    url, clients, seconds, method, body, *paths = sys.argv[1:]
    statuses = asyncio.run(
        flood(
            url,
            clients=int(clients),
            once=clients.startswith("+"),
            seconds=float(seconds),
            method=method,
            body=json.loads(body),
            paths=paths,
        )
    )
    sys.stdout.write(json.dumps(statuses))


if __name__ == "__main__":
    main()
