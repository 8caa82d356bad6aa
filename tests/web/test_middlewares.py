"""Tests failures of handlers: responses, logs and recovery."""

import asyncio
import gc
import json
import weakref
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from conftest import Client
from support import Capture, Patch, get_app, until


async def test_a_failing_handler_is_a_500_and_logged(start_with: Any, capsys: Capture) -> None:
    """The response has no details; the log has the traceback, and the same request and trace."""

    async def handler(_: web.Request) -> web.Response:
        raise RuntimeError("the secret of the inside")

    client = await start_with(handler)

    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    response = await client.get("/handler", headers=headers)
    text = await response.text()
    problem = json.loads(text)
    again = await client.get("/v1/healthcheck")

    assert ("Connection" in response.headers, again.status) == (False, 200)
    assert response.status == problem["status"] == 500
    assert response.headers["Content-Type"] == "application/problem+json"
    assert "secret" not in text
    out = capsys.readouterr().out
    assert "RuntimeError: the secret of the inside" in out
    assert out.count(f"request_id={problem['request_id']}") == 2  # the failure, the access line
    assert out.count(f"trace_id={trace}") == 2


async def test_a_failure_within_aiohttp_is_a_500_that_ends_the_connection(
    client: Client, monkeypatch: Patch
) -> None:
    """Nobody knows what is left in the connection."""
    monkeypatch.setattr(get_app(client).router, "resolve", Mock(side_effect=RuntimeError))

    response = await client.get("/v1/movies/7")

    assert (response.status, response.headers["Connection"]) == (500, "close")
    assert (await response.json())["title"] == "Internal server error"


@pytest.mark.parametrize(
    ("sent", "instance"),
    [
        ("/v1/movies/7?token=secret", "/v1/movies/7"),
        ("/v1/Am%C3%A9lie%20%3F", "/v1/Am%C3%A9lie%20%3F"),
    ],
)
async def test_a_problem_names_the_path_without_the_query(
    client: Client, sent: str, instance: str
) -> None:
    """As it was sent (RFC 9457, 3.1.5); a query string may have private data."""
    assert (await (await client.get(sent)).json())["instance"] == instance


async def test_a_stop_waits_for_every_request(start_with: Any) -> None:
    """And not only for the first one that ends."""
    ends = [asyncio.Event(), asyncio.Event()]
    waiting: list[asyncio.Event] = []

    async def handler(_: web.Request) -> web.Response:
        waiting.append(ends[len(waiting)])
        await waiting[-1].wait()
        return web.Response()

    client = await start_with(handler)
    requests = [asyncio.create_task(client.get("/handler")) for _ in ends]
    await until(lambda: len(waiting) == 2)
    stop = asyncio.create_task(client.server.runner.cleanup())
    ends[0].set()
    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    has_stopped = stop.done()
    ends[1].set()
    responses = await asyncio.gather(*requests)
    await stop

    assert not has_stopped
    assert [response.status for response in responses] == [200, 200]


async def test_requests_that_took_too_long_are_forgotten(start_with: Any) -> None:
    """Memory does not grow: at most the task of the last one is kept."""
    tasks = weakref.WeakSet[Any]()

    async def handler(_: web.Request) -> web.Response:
        tasks.add(asyncio.current_task())
        await asyncio.Event().wait()
        raise AssertionError

    def are_forgotten() -> bool:
        gc.collect()
        return len(tasks) <= 1

    client = await start_with(handler, server__request_timeout=0.1)

    assert [(await client.get("/handler")).status for _ in range(3)] == [503] * 3

    await until(are_forgotten)
