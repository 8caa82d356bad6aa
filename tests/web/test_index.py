"""Tests the paths `/` and `/v1`."""

import pytest
from conftest import Client


@pytest.mark.parametrize("path", ["/", "/v1"])
async def test_the_index_has_paths_that_exist(client: Client, path: str) -> None:
    """It has the movies, the reference page and the OpenAPI document."""
    response = await client.get(path)
    index = await response.json()

    assert response.status == 200
    assert index == {"api": "/v1/movies", "reference": "/v1/docs", "openapi": "/v1/openapi.json"}
    for target in index.values():
        assert (await client.get(target)).status == 200
