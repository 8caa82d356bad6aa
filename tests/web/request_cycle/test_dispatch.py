"""Handlers are found by the path alone, as aiohttp's router would find them."""

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from service.app import create_app
from service.config import Config
from service.web.request_cycle.dispatch import Dispatch


async def router(_: web.BaseRequest) -> web.StreamResponse:
    """What stands for aiohttp's own way."""
    return web.Response()


@pytest.fixture
def app(settings: Callable[..., Config]) -> web.Application:
    """The application, not started."""
    return create_app(settings())


async def test_every_path_but_one_is_told(app: web.Application) -> None:
    """All of the table; only the page's files go through the router."""
    dispatch = Dispatch(app, router)
    left = set()
    for route in app.router.routes():
        assert route.resource
        path = route.resource.canonical
        found = dispatch.find(make_mocked_request(route.method, path.replace("{id}", "7")))
        if found.handler is router:
            left.add(path)
        else:
            assert (found.handler, found.route) == (route.handler, path)

    assert left == {"/v1/docs/{file}"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/v1/movies/"),
        ("GET", "/v1/movies/07"),
        ("GET", "/v1/movies/{id}"),
        ("GET", "/v1/movies/1000000000000000000"),
        ("POST", "/v1/movies/7"),
        ("OPTIONS", "/v1/movies"),
    ],
)
async def test_anything_else_is_left_to_the_router(
    app: web.Application, method: str, path: str
) -> None:
    """Wrong paths and methods, and ids that are written in another way."""
    found: Any = Dispatch(app, router).find(make_mocked_request(method, path))

    assert found == (router, None)
