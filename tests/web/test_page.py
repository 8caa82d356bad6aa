"""Tests the reference page in a real browser."""

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator

import chromium
import pytest
from aiohttp import web
from chromium import Page
from conftest import MOANA, ROOT, Client, Start
from pytest_aiohttp import AiohttpServer
from support import Execute, add_client


@pytest.fixture(scope="module")
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


async def show(
    page: Page, client: Client, fragment: str = "", *, width: int = 1440, scheme: str = "light"
) -> None:
    """Load the reference and wait until the document is rendered."""
    await page.call("Page.navigate", url="about:blank")
    url = str(client.make_url("/v1/docs")) + fragment
    await page.show(url, width=width, height=900, scheme=scheme)
    await page.until("document.documentElement.dataset.rendered")


async def read(page: Page, selector: str, attribute: str = "innerText") -> str:
    """Return the text, or another property, of an element."""
    return str(await page.evaluate(f"document.querySelector({selector!r}).{attribute}"))


async def fill(page: Page, selector: str, text: str) -> None:
    """Enter a text as the keyboard would, in place of what is there."""
    await page.evaluate(f"document.querySelector({selector!r}).select()")
    await page.call("Input.insertText", text=text)


async def send_form(page: Page, operation: str) -> str:
    """Send the form of an operation, and return the response that it shows."""
    await page.evaluate(f"document.querySelector('#{operation} .result').replaceChildren()")
    await page.evaluate(f"document.querySelector('#{operation} .send').click()")
    await page.until(f"document.querySelector('#{operation} .outcome')")
    return await read(page, f"#{operation} .output")


async def test_the_page_renders_every_operation_without_complaint(
    page: Page, client: Client
) -> None:
    """Wide and narrow, light and dark: no message in the console, and no content is cut off."""
    document = await (await client.get("/v1/openapi.json")).json()
    expected = sum(map(len, document["paths"].values()))

    for width, scheme in ((1440, "light"), (360, "dark")):
        await show(page, client, width=width, scheme=scheme)

        forms = await page.evaluate("document.querySelectorAll('article.operation form').length")
        cut_off = await page.evaluate(
            "[...document.querySelectorAll('main *:not(pre *)')]"
            ".filter((each) => each.getBoundingClientRect().right > innerWidth).length"
        )
        gap = await page.evaluate(
            "Math.max(...[...document.querySelectorAll('article')].map((each) =>"
            " each.querySelector('.description').getBoundingClientRect().top"
            " - each.querySelector('.route').getBoundingClientRect().bottom))"
        )
        assert (forms, cut_off) == (expected, 0)
        assert gap < 20  # however long the panel beside the two is
    assert page.complaints == []


async def test_try_it_creates_a_movie(page: Page, client: Client) -> None:
    """The form sends its text and shows the response; the other forms get the new movie's id."""
    await show(page, client)
    movie = {"title": "Moana’s", "year": 2016, "runtime": "107 mins", "genres": ["animation"]}
    await fill(page, "#create_movie textarea", json.dumps(movie))

    output = await send_form(page, "create_movie")

    assert output.startswith("201")
    assert "location" in output
    assert '"title": "Moana’s"' in output
    assert await read(page, "#show_movie input", "value") == "1"
    assert (await (await client.get("/v1/movies/1")).json())["movie"].items() >= movie.items()
    assert page.complaints == []


async def test_the_forms_send_the_token(page: Page, start: Start, execute: Execute) -> None:
    """Only to operations that know tokens; the sample has a variable in its place."""
    client = await start(access__anonymous="none")
    token = add_client(execute, "write")
    await show(page, client)
    await page.evaluate(
        "window.tokens = []; const original = fetch; window.fetch = (url, options) => {"
        " tokens.push(options.headers.Authorization ?? null); return original(url, options); }"
    )

    refused = await send_form(page, "create_movie")
    await fill(page, "#token", token)
    created = await send_form(page, "create_movie")
    await send_form(page, "show_health")

    assert refused.startswith("401")
    assert created.startswith("201")
    assert await page.evaluate("tokens") == [None, f"Bearer {token}", None]
    assert '-H "Authorization: Bearer $TOKEN"' in await read(page, "#create_movie-sample")


async def test_the_token_is_in_memory_only(page: Page, start: Start, execute: Execute) -> None:
    """It is in no storage, cookie, address or text, and gone when the page is left."""
    await show(page, await start(access__anonymous="none"))
    token = add_client(execute, "read")
    await fill(page, "#token", token)
    await send_form(page, "list_movies")

    stored = await page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, history.state])"
        " + document.cookie + location.href + document.documentElement.outerHTML"
    )
    await page.evaluate("dispatchEvent(new Event('pagehide'))")

    assert token not in stored
    assert await read(page, "#token", "autocomplete") == "off"
    assert await read(page, "#token", "value") == ""


@pytest.mark.parametrize(("anonymous", "is_required"), [("none", True), ("write", False)])
async def test_each_operation_shows_whether_it_needs_a_token(
    page: Page,
    start: Start,
    anonymous: str,
    is_required: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Also the sample, before a token was entered."""
    await show(page, await start(access__anonymous=anonymous))

    row = await read(page, "#delete_movie form .field")

    assert "token with the scope write" in row
    assert ("required" in row) == is_required
    assert ("allows it without a token" in row) == (not is_required)
    assert ("$TOKEN" in await read(page, "#delete_movie-sample")) == is_required
    assert "token" not in await read(page, "#show_health")


async def test_the_response_is_visible_and_announced(page: Page, client: Client) -> None:
    """Of a form that is longer than the window; the body comes before the headers."""
    await show(page, client, width=400)

    output = await send_form(page, "create_movie")

    assert output.index("BODY") < output.index("HEADERS")
    await page.until(
        "document.querySelector('#create_movie .outcome').getBoundingClientRect().top > 0"
    )
    bottom = "document.querySelector('#create_movie .outcome').getBoundingClientRect().bottom"
    assert await page.evaluate(f"{bottom} < innerHeight / 2")
    announced = await read(page, "#create_movie [role=status]", "textContent")
    assert announced.startswith("201 Created")
    assert "Casablanca" not in announced


async def test_a_401_leads_to_the_token_and_back(page: Page, start: Start) -> None:
    """The field has the focus and a message; a button leads back to the form."""
    await show(page, await start(access__anonymous="none"))
    await page.evaluate("document.querySelector('#create_movie .send').click()")
    await page.until("document.activeElement.id === 'token'")

    message = await read(page, "#token-problem[role=alert]")
    top = await page.evaluate("document.activeElement.getBoundingClientRect().top")
    await page.evaluate("document.querySelector('#token-problem button').click()")

    assert message.startswith("401")
    assert 0 < top < 900
    assert await page.evaluate("document.activeElement.matches('#create_movie .send')")


async def search(page: Page, words: str) -> list[str]:
    """Return the fragments of what the search finds."""
    await fill(page, "#search", words)
    links = "[...document.querySelectorAll('#results a')].map((link) => link.hash)"
    return list(await page.evaluate(links))


async def test_the_search_finds_operations(page: Page, client: Client) -> None:
    """`/` leads to the search; words in the method, path or summary come first; Enter opens one."""
    await show(page, client)
    await press(page, "/", 191)
    assert await page.evaluate("document.activeElement.id") == "search"

    found = await search(page, "PATCH /v1/movies/{id}")
    count = await read(page, "#found")
    await press(page, "Enter", 13, text="\r")

    assert found[0] == "#update_movie"
    assert "PATCH /v1/movies/{id} " in await read(page, "#results a", "textContent")
    assert count == f"{len(found)} found"
    await page.until("location.hash === '#update_movie'")


async def test_the_search_finds_concepts(page: Page, client: Client) -> None:
    """In documents, operations and problems."""
    await show(page, client)

    for concept in ("stream", "csv", "cursor", "etag", "idempotency"):
        found = await search(page, concept)
        operations = [each for each in found if "_" in each]
        assert len(found) > len(operations) > 0, concept
    assert await search(page, "no-such-word") == []


async def test_what_a_response_names_fills_the_forms(page: Page, client: Client) -> None:
    """The cursor of a page, the URLs in Link, and the position of a list in the feed."""
    await show(page, client)
    for _ in range(2):
        await send_form(page, "create_movie")
    await fill(page, "#list_movies-parameter-page_size", "1")
    await fill(page, "#list_movies-parameter-title", "casa*")

    await send_form(page, "list_movies")
    body = "#list_movies .output pre"
    cursor = await read(page, f"{body} a[href='#list_movies']")
    await page.evaluate(f"document.querySelector({body!r}).querySelector('a').click()")
    after_body = await read(page, "#list_movies-parameter-cursor", "value")
    await fill(page, "#list_movies-parameter-cursor", "")
    await page.evaluate(
        "[...document.querySelectorAll('#list_movies .output pre a')].at(-1).click()"
    )

    assert after_body == cursor.strip('"')
    assert await read(page, "#list_movies-parameter-cursor", "value") == after_body


async def test_a_form_shows_the_example_and_how_to_fill_it(page: Page, client: Client) -> None:
    """Before anything was sent; a batch has one for each of its two successes."""
    await show(page, client)

    batch = await read(page, "#create_movies .output")

    assert "EXAMPLE OF 201" in batch
    assert "EXAMPLE OF 207" in batch
    assert "results[].status" in await read(page, "#create_movies .more", "textContent")
    assert await read(page, "#list_movies-parameter-year", "placeholder") == "1990..1999"
    bodies = ("#create_movie", "#restore_movie")
    labels = [await read(page, f"{each} label[for$=-body]", "textContent") for each in bodies]
    assert labels == ["Body required", "Body"]
    assert "required" not in await read(page, "#create_movie .control:has([name=Content-Type])")
    assert await read(page, "#create_movie [name=Content-Type]", "value") == "application/json"


async def test_a_form_gets_a_stream(page: Page, client: Client) -> None:
    """`Accept` is a field of the form."""
    await show(page, client)
    await send_form(page, "create_movie")
    await page.evaluate(
        "document.querySelector('#list_movies-parameter-Accept').value = 'text/csv'"
    )

    output = await send_form(page, "list_movies")

    assert "id,title,year" in output
    assert "total-records: 1" in output


async def test_the_documents_have_the_address_of_the_service(page: Page, client: Client) -> None:
    """Commands can be copied; `127.0.0.1:8000` is only in the files."""
    await show(page, client)

    assert "127.0.0.1:8000" not in await read(page, "main")
    assert str(client.make_url("/"))[:-1] in await read(page, ".document")


RUNNERS = {
    "curl": ["sh", "-s"],
    "Python": [sys.executable, "-"],
    "JavaScript": ["node", "--input-type=module", "-"],
}


@pytest.mark.parametrize("language", RUNNERS)
async def test_the_samples_run(page: Page, start: Start, execute: Execute, language: str) -> None:
    """Each sends the request of the form, with the token in TOKEN."""
    program, *arguments = RUNNERS[language]
    if not shutil.which(program):
        pytest.skip(f"there is no {program}")
    client = await start(access__anonymous="none")
    await show(page, client)
    title = "C:\\new 'quotes' \"and\" ${dollars} é"
    movie = {"title": title, "year": 2016, "runtime": "107 mins", "genres": ["animation"]}
    await fill(page, "#create_movie textarea", json.dumps(movie, indent=2))
    await page.evaluate(
        "(() => { const choice = document.querySelector('#show_movie .language');"
        f" choice.value = '{language}'; choice.dispatchEvent(new Event('change')); }})()"
    )

    sample = await read(page, "#create_movie-sample", "textContent")
    process = await asyncio.create_subprocess_exec(
        *(program, *arguments),
        env={**os.environ, "TOKEN": add_client(execute, "write")},
        stdin=PIPE,
        stdout=PIPE,
    )
    output, _ = await process.communicate(sample.encode())

    assert "201" in output.decode()
    assert execute("select title from movies") == [(title,)]


async def test_the_keyboard_is_enough(page: Page, client: Client) -> None:
    """The second skip link leads to the requests, and few Tabs to Send; Ctrl+Enter sends, too."""
    await show(page, client)

    for _ in range(2):
        await press(page, "Tab", 9)
        assert await page.evaluate("document.activeElement.className") == "skip"
    await press(page, "Enter", 13, text="\r")
    tabs = 2
    while not await page.evaluate("document.activeElement.matches('.send')"):
        await press(page, "Tab", 9)
        tabs += 1
        assert tabs <= 10
    await press(page, "Enter", 13, text="\r")
    await page.until("document.querySelector('#list_movies .outcome')")
    await page.evaluate("document.querySelector('#create_movie textarea').focus()")
    await press(page, "Enter", 13, modifiers=2)
    await page.until("document.querySelector('#create_movie .outcome')")

    assert (await client.get("/v1/movies/1")).status == 200


async def press(page: Page, key: str, code: int, **text: str | int) -> None:
    """Press and release a key."""
    for kind in ("keyDown", "keyUp"):
        await page.call(
            "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
        )


async def test_every_control_and_landmark_has_a_name(page: Page, client: Client) -> None:
    """A screen reader can read every link, button and field; no two landmarks are called alike."""
    await show(page, client)

    tree = await page.call("Accessibility.getFullAXTree")

    named = [
        (node.get("role", {}).get("value"), node.get("name", {}).get("value"))
        for node in tree["nodes"]
    ]
    usable = {"link", "button", "textbox", "combobox", "DisclosureTriangle"}
    controls = [name for role, name in named if role in usable]
    kinds = {"banner", "form", "main", "navigation", "region", "search"}
    landmarks = [each for each in named if each[0] in kinds]
    assert len(controls) > 50
    assert all(controls)
    assert 10 < len(landmarks) == len(set(landmarks))


@pytest.mark.parametrize("section", ["validation-failed", "delete_movie"])
async def test_the_target_of_a_link_is_visible(page: Page, client: Client, section: str) -> None:
    """The fragment of a URL works, and the table of contents marks it, on a narrow screen, too."""
    await show(page, client, f"#{section}", width=360)

    top = await page.evaluate(f"document.getElementById('{section}').getBoundingClientRect().top")

    assert 0 <= top < 450
    await page.until("document.querySelector('.contents [aria-current=true]')")
    assert (await read(page, ".contents [aria-current=true]", "hash")) == f"#{section}"


async def test_the_client_to_copy_runs_in_a_browser(
    page: Page, start: Start, aiohttp_server: AiohttpServer
) -> None:
    """All that it exports, on a page of another origin, without a bundler."""
    catalogue = await start(server__cors_origins=("*",))
    script = (ROOT / "clients/movies.mjs").read_text()

    async def answer(request: web.Request) -> web.Response:
        is_page = request.path == "/"
        kind = "text/html" if is_page else "text/javascript"
        return web.Response(text="<title>a</title>" if is_page else script, content_type=kind)

    pages = web.Application()
    pages.router.add_get("/{name:.*}", answer)
    server = await aiohttp_server(pages)
    await page.show(str(server.make_url("/")), width=800, height=600)

    script_of_page = """import("/movies.mjs").then(async ({ Catalogue, Copy, Problem }) => {
      const catalogue = new Catalogue(API), copy = new Copy();
      const { id } = await catalogue.create(MOVIE);
      await copy.update(catalogue);
      const { year } = await catalogue.change(id, () => ({ year: 2000 }));
      const results = await catalogue.createMany([MOVIE, { ...MOVIE, year: 1 }], "a key");
      const listed = [];
      for await (const movie of catalogue.movies({ page_size: 1 })) listed.push(movie.id);
      const isNew = () => copy.movies.size === 2 && copy.movies.get(id).year === year;
      while (!isNew()) await copy.update(catalogue);
      const refused = await catalogue.create({}).catch((error) => error instanceof Problem);
      return [year, results.map(({ status }) => status), listed.length, refused];
    })"""
    api = json.dumps(str(catalogue.make_url("")))
    filled = script_of_page.replace("API", api).replace("MOVIE", json.dumps(MOANA))

    assert await page.evaluate(filled) == [2000, [201, 422], 2, True]
