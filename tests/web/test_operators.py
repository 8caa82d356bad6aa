"""Tests the operations port, and /metrics on the service's own port."""

import asyncio
import json
from dataclasses import replace
from http import HTTPStatus

import aiohttp
import pytest
from conftest import Client, Connect, Start
from multidict import CIMultiDict
from support import get_app
from wire import begin_request

from service.serving import bind
from service.web.middleware import CYCLE
from service.web.server import Runner

TOKEN = "0123456789abcdef"


async def open_port(client: Client) -> str:
    """Serve the operations port of a client's service on a free port; return its address."""
    runner = client.server.runner
    assert isinstance(runner, Runner)
    address = replace(client.server.settings.operations, port=0)  # type: ignore[attr-defined] # conftest's Service
    (listener,) = bind(address, "HOST and PORT")
    await runner.listen([], [listener])
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def get(url: str, method: str = "GET") -> tuple[int, str, str]:
    """Return status, content type and body of a response on a new connection."""
    async with aiohttp.ClientSession() as session, session.request(method, url) as response:
        return response.status, response.headers.get("Content-Type", ""), await response.text()


async def test_live_ready_and_metrics(start: Start) -> None:
    """The three paths respond; the requests to them are not counted."""
    base = await open_port(await start(operations__port=1))

    live = await get(f"{base}/live")
    ready = await get(f"{base}/ready")
    await get(f"{base}/metrics")
    status, kind, text = await get(f"{base}/metrics")

    assert (live[0], ready[0], status) == (200, 200, 200)
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert "catalogue_processes 1.0\n" in text
    assert "catalogue_request_duration_seconds_count" not in text


async def test_everything_else_is_a_problem(start: Start) -> None:
    """The API is not on the operations port."""
    base = await open_port(await start(operations__port=1))

    for method, path, status in (("GET", "/v1", 404), ("GET", "/", 404), ("POST", "/metrics", 405)):
        answer, kind, body = await get(f"{base}{path}", method)
        assert (answer, kind) == (status, "application/problem+json")
        assert json.loads(body)["title"] == HTTPStatus(status).phrase.capitalize()


async def test_with_too_many_connections(start: Start, connect: Connect) -> None:
    """The operations port has connections of its own."""
    client = await start(operations__port=1, server__max_connections=1)
    base = await open_port(client)
    reader, writer = busy = await connect(client)
    await begin_request(busy)

    live, ready = await get(f"{base}/live"), await get(f"{base}/ready")
    writer.write(b"{}")

    assert (live[0], ready[0]) == (200, 200)
    assert (await reader.readline()).startswith(b"HTTP/1.1 422 ")


async def test_until_the_end_of_draining(start: Start, connect: Connect) -> None:
    """While the last requests run, the process is alive and not ready; then the port is closed."""
    client = await start(operations__port=1)
    base = await open_port(client)
    cycle = get_app(client)[CYCLE]
    reader, writer = busy = await connect(client)
    await begin_request(busy)
    assert isinstance(client.server.runner, Runner)

    stop = asyncio.create_task(client.server.runner.cleanup())
    while not cycle.is_draining:  # noqa: ASYNC110 - it is set in the next turn
        await asyncio.sleep(0)
    live, ready = await get(f"{base}/live"), await get(f"{base}/ready")
    writer.write(b"{}")
    await reader.read()
    writer.close()
    await stop

    assert (live[0], ready[0]) == (200, 503)
    with pytest.raises(aiohttp.ClientConnectionError):
        await get(f"{base}/live")


async def test_metrics_need_the_token(start: Start) -> None:
    """Without it, /metrics on the service's own port is 401, and says how (RFC 6750, 3).

    So it is with two headers: a proxy may have looked at the other one.
    """
    client = await start(operations__token=TOKEN)
    right = f"Bearer {TOKEN}"

    for values in ([], [right[:-1] + "g"], [f"Basic {TOKEN}"], [right, "Bearer x"]):
        headers = CIMultiDict(("Authorization", value) for value in values)
        response = await client.get("/metrics", headers=headers)
        assert response.status == 401
        assert response.headers["WWW-Authenticate"].startswith("Bearer realm=")
        assert response.content_type == "application/problem+json"
    for scheme in ("Bearer", "bearer"):
        response = await client.get("/metrics", headers={"Authorization": f"{scheme} {TOKEN}"})
        assert response.status == 200
        text = await response.text()
        assert "catalogue_processes 1.0\n" in text
        assert "catalogue_requests_in_flight 1.0\n" in text  # this one: gauges are current


async def test_without_a_token_there_are_no_metrics(start: Start) -> None:
    """/metrics is 404 as any unknown path, also when the operations port is on."""
    client = await start(operations__port=1)

    response = await client.get("/metrics", headers={"Authorization": "Bearer "})

    assert response.status == 404
