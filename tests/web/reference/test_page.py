"""The reference page in a real browser."""

from collections.abc import AsyncIterator, Iterator

import chromium
import pytest
from chromium import Page
from conftest import Client

pytestmark = pytest.mark.skipif(
    not chromium.EXECUTABLE, reason="needs Chromium (apt-get install chromium)"
)

SEND = "#create_movie .send"
OUTCOME = "#create_movie .outcome"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a browser."""
    with chromium.running(tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
async def page(browser: str) -> AsyncIterator[Page]:
    """An empty page that is the test's own."""
    async with chromium.opened(browser) as opened:
        yield opened


async def show(
    page: Page, client: Client, fragment: str = "", *, width: int = 1440, scheme: str = "light"
) -> None:
    """Load the reference and wait until the document is rendered."""
    url = str(client.make_url("/v1/docs")) + fragment
    await page.show(url, width=width, height=900, scheme=scheme)
    await page.until("document.documentElement.dataset.rendered")


async def count(page: Page, selector: str) -> int:
    """How many elements there are."""
    return int(await page.evaluate(f"document.querySelectorAll({selector!r}).length"))


async def test_the_page_renders_every_operation_without_complaint(
    page: Page, client: Client
) -> None:
    """Nothing in the console, wide and narrow, light and dark, and nothing runs out of the page."""
    document = await (await client.get("/v1/openapi.json")).json()
    shown = {"get", "post", "patch", "put", "delete"}
    expected = sum(len(item.keys() & shown) for item in document["paths"].values())

    for width, scheme in ((1440, "light"), (360, "dark")):
        await page.send("Page.navigate", url="about:blank")
        await show(page, client, width=width, scheme=scheme)

        assert await count(page, "article.operation") == expected
        assert await count(page, "article.operation form") == expected
        assert (
            await page.evaluate(
                "[...document.querySelectorAll('main *:not(pre *)')]"
                ".filter((each) => each.getBoundingClientRect().right > innerWidth).length"
            )
            == 0
        )
    assert page.complaints == []


async def test_the_policy_refuses_what_is_inline(page: Page, client: Client) -> None:
    """A script that got into the page would not run; the browser says so, and the tests see it."""
    await show(page, client)

    await page.evaluate("document.body.setAttribute('onclick', 'window.ran = true')")
    await page.evaluate("document.body.click()")

    assert await page.evaluate("window.ran === undefined")
    assert "Content Security Policy" in "".join(page.complaints)


async def test_try_it_creates_a_movie(page: Page, client: Client) -> None:
    """The form sends what it shows; the answer is shown; the other forms ask for the new movie."""
    await show(page, client)
    await page.evaluate(
        "(body => { body.value = body.value.replace('Casablanca', 'Moana’s'); "
        "body.dispatchEvent(new Event('input', { bubbles: true })); })"
        "(document.querySelector('#create_movie textarea'))"
    )

    await page.evaluate(f"document.querySelector('{SEND}').click()")
    await page.until(f"document.querySelector('{OUTCOME}')")

    output = await page.evaluate("document.querySelector('#create_movie .output').innerText")
    assert "201" in output
    assert "location" in output
    assert '"title": "Moana’s"' in output
    assert await page.evaluate("document.querySelector('#show_movie input').value") == "1"
    movie = (await (await client.get("/v1/movies/1")).json())["movie"]
    assert (movie["title"], movie["year"]) == ("Moana’s", 1942)
    assert page.complaints == []


async def test_the_curl_line_is_what_the_form_sends(page: Page, client: Client) -> None:
    """It follows the form, and quotes for the shell."""
    await show(page, client)

    await page.evaluate(
        "(input => { input.value = 'it\\'s'; "
        "input.dispatchEvent(new Event('input', { bubbles: true })); })"
        "(document.querySelector('#show_movie input[name=X-Request-Id]'))"
    )

    line = await page.evaluate("document.querySelector('#show_movie-curl').textContent")
    assert line.splitlines()[0] == "curl -i \\"
    assert "-H 'X-Request-Id: it'\\''s'" in line
    assert line.endswith(f"'{client.make_url('/v1/movies/7')}'")


async def test_the_keyboard_is_enough(page: Page, client: Client) -> None:
    """Tab comes to the skip link first, and in time to the button that sends."""
    await show(page, client)

    await press(page, "Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    for _ in range(120):
        await press(page, "Tab")
        if await page.evaluate(f"document.activeElement.matches('{SEND}')"):
            break
    await press(page, "Enter")
    await page.until(f"document.querySelector('{OUTCOME}')")

    assert (await client.get("/v1/movies/1")).status == 200


async def test_whatever_can_be_used_has_a_name(page: Page, client: Client) -> None:
    """A screen reader has something to say for every link, button and field."""
    await show(page, client)

    tree = await page.send("Accessibility.getFullAXTree")

    usable = {"link", "button", "textbox", "combobox", "DisclosureTriangle"}
    found = [node for node in tree["nodes"] if node.get("role", {}).get("value") in usable]
    assert len(found) > 50
    assert [node for node in found if not node.get("name", {}).get("value")] == []


@pytest.mark.parametrize("section", ["validation-failed", "delete_movie"])
async def test_what_a_link_leads_to_is_in_sight(page: Page, client: Client, section: str) -> None:
    """An address keeps its meaning though the operations are rendered after the page came."""
    await show(page, client, f"#{section}", width=360)

    top = await page.evaluate(f"document.getElementById('{section}').getBoundingClientRect().top")

    assert 0 <= top < 450


async def press(page: Page, key: str) -> None:
    """Press a key and let it go."""
    text = {"text": "\r"} if key == "Enter" else {}
    code = {"Tab": 9, "Enter": 13}[key]
    for kind in ("keyDown", "keyUp"):
        await page.send(
            "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
        )
