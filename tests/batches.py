"""Sends batches of movies."""

import json
from typing import Any

from conftest import MOANA, Client

BATCH, DELETE = "/v1/movies/batch", "/v1/movies/batch/delete"
LENIENT = {"Prefer": "handling=lenient"}
BAD_YEAR = {**MOANA, "year": 1800}


def name(*titles: str) -> list[dict[str, Any]]:
    """Return movies with these titles."""
    return [{**MOANA, "title": title} for title in titles]


def titles(movies: list[dict[str, Any]]) -> list[str]:
    """Return the titles of movies."""
    return [movie["title"] for movie in movies]


async def send_batch(
    client: Client, movies: Any, method: str = "POST", path: str = BATCH, **headers: str
) -> tuple[int, Any, bytes]:
    """Return status, parsed body and body of the response. `idempotency_key` and such: headers."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    response = await client.request(method, path, json={"movies": movies}, headers=named)
    body = await response.read()
    return response.status, json.loads(body), body
