"""`/` and `/v1`: where the API and its reference are."""

from aiohttp import web

from service.web.responses import json_response

INDEX = {"api": "/v1/movies", "reference": "/v1/docs", "openapi": "/v1/openapi.json"}


async def show_index(_: web.Request) -> web.StreamResponse:
    """200; does not use the database."""
    return json_response(INDEX)
