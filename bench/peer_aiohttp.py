"""Shows the limit of the framework: bare aiohttp responds to every GET with the same movie."""

import asyncio
import os
from datetime import UTC, datetime

from aiohttp import web

from service.web.responses import json_response

CREATED_AT = datetime(2026, 1, 5, 12, 0, 0, 123456, UTC)
TITLE = "The Return of Number 54321"
MOVIE = {
    "id": 54321,
    "title": TITLE,
    "year": 1942,
    "runtime": "102 mins",
    "genres": ["drama", "war"],
    "version": 1,
    "created_at": CREATED_AT,
    "updated_at": CREATED_AT,
}
BODY = json_response({"movie": MOVIE}).body


async def get_movie(_: web.Request) -> web.Response:
    """Respond with the same movie for every id."""
    return web.Response(body=BODY, content_type="application/json")


async def main() -> None:
    """Serve until killed."""
    app = web.Application()
    app.router.add_get("/v1/movies/{id}", get_movie)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(os.environ["PORT"]), backlog=2048).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
