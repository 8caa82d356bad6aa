"""Fixtures: pages in a real browser."""

from collections.abc import AsyncIterator, Iterator

import chromium
import pytest
from chromium import Page


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a browser, or skip the test."""
    if not chromium.EXECUTABLE:
        pytest.skip("needs Chromium (apt-get install chromium)")
    with chromium.running(tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
async def page(browser: str) -> AsyncIterator[Page]:
    """Return an empty page."""
    async with chromium.opened(browser) as opened:
        yield opened
