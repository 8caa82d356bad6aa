"""Tests the OpenAPI document and the page: complete, without dead links or foreign files."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from conftest import MOANA, Client, Start
from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it has no types
from openapi_spec_validator import OpenAPIV31SpecValidator
from support import Execute, add_client

from service.web import problems
from service.web.reference.problem_texts import PROBLEM_TEXTS, example_json
from service.web.request_cycle.request_ids import assign_request_id

# Headers of HTTP itself, and headers for browsers, which the document leaves out.
PLAIN = {"content-encoding", "content-length", "content-type", "date", "server", "vary"}
PLAIN |= {"content-security-policy", "referrer-policy", "x-content-type-options"}
METHODS = {"get", "head", "post", "patch", "put", "delete"}


@pytest.fixture
async def document(client: Client) -> dict[str, Any]:
    """Return the document as clients get it."""
    return dict(await (await client.get("/v1/openapi.json")).json())


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, method and operation."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


async def test_every_route_is_in_the_document_and_nothing_else(
    client: Client, document: dict[str, Any]
) -> None:
    """The document has exactly the methods and paths of the application."""
    served = {
        (route.resource.canonical, route.method.lower())
        for route in client.server.app.router.routes()  # type: ignore[attr-defined] # conftest's Service
    }

    described = {(path, method) for path, method, _ in operations(document)}

    assert {pair for pair in described if pair[1] in METHODS} == served
    assert {path for path, method in described if method == "options"} == set(document["paths"])


async def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    """An independent validator accepts it as OpenAPI 3.1."""
    assert document["openapi"].startswith("3.1.")

    errors = list(OpenAPIV31SpecValidator(document).iter_errors())

    assert errors == []


PUBLIC: list[Any] = []
READ, WRITE = {"token": ["read"]}, {"token": ["write"]}


@pytest.mark.parametrize(
    ("anonymous", "read", "write"),
    [
        ("write", [READ, {}], [WRITE, {}]),
        ("read", [READ, {}], [WRITE]),
        ("none", [READ], [WRITE]),
    ],
)
async def test_each_operation_says_which_token_it_needs(
    start: Start, anonymous: str, read: list[Any], write: list[Any]
) -> None:
    """`{}` is there if the operation works without a token; the 401 and 403 are documented."""
    client = await start(access__anonymous=anonymous)
    document = await (await client.get("/v1/openapi.json")).json()

    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, method, operation in operations(document):
        has_scope = method != "options" and path.startswith(("/v1/movies", "/v1/genres"))
        is_read = method in ("get", "head")
        assert operation["security"] == ((read if is_read else write) if has_scope else PUBLIC)
        problems = {"unauthorized"} if has_scope else set()
        problems |= {"forbidden"} if has_scope and not is_read else set()
        found = operation["responses"].keys() & {"401", "403"}
        assert {slug for each in found for slug in get_problems(operation, int(each))} == problems
        assert not has_scope or "malformed-header" in get_problems(operation, 400)


async def test_refusals_are_documented_with_their_headers(start: Start, execute: Execute) -> None:
    """401 and 403 have WWW-Authenticate, and 429 says which limit it was."""
    client = await start(limits__creates_per_day=1)
    document = await (await client.get("/v1/openapi.json")).json()
    await client.post("/v1/movies", json=MOANA)

    for headers, status in (
        ({"Authorization": f"Bearer {add_client(execute, 'read')}"}, 403),
        ({"Authorization": "Bearer x"}, 401),
        ({}, 429),
    ):
        response = await client.post("/v1/movies", json=MOANA, headers=headers)
        described = document["paths"]["/v1/movies"]["post"]["responses"][str(status)]["$ref"]
        slug = described.split("/")[-1]

        assert response.status == status
        assert (await response.json())["type"].endswith(f"#{slug}")
        expected = document["components"]["responses"][slug]["headers"].keys()
        assert {name.lower() for name in expected} == {n.lower() for n in response.headers} - PLAIN


async def test_every_operation_is_one_of_a_listed_group(document: dict[str, Any]) -> None:
    """A misspelt tag would be another group on the page."""
    listed = {tag["name"] for tag in document["tags"]}

    assert {tag for _, _, operation in operations(document) for tag in operation["tags"]} == listed


async def test_every_request_and_response_documents_the_request_id(
    document: dict[str, Any],
) -> None:
    """X-Request-Id is documented for every route and status."""
    for path, method, operation in operations(document):
        assert {"$ref": "#/components/parameters/X-Request-Id"} in operation["parameters"]
        for status, given in operation["responses"].items():
            name = given.get("$ref", "").split("/")[-1]
            answer = document["components"]["responses"][name] if name else given
            assert "X-Request-Id" in answer["headers"], (path, method, status)


ID = "/v1/movies/{id}"
FILE = "/v1/docs/{file}"


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("GET", "/", None),
        ("GET", "/v1", None),
        ("GET", "/v1/healthcheck", None),
        ("GET", "/v1/healthcheck/ready", None),
        ("POST", "/v1/movies", MOANA),
        ("POST", "/v1/movies", {"title": ""}),
        *((method, ID, None) for method in ("GET", "HEAD", "OPTIONS", "DELETE")),
        *((method, ID, MOANA) for method in ("PATCH", "PUT")),
        ("GET", "/v1/openapi.json", None),
    ],
)
async def test_every_header_of_responses_is_documented(
    client: Client, document: dict[str, Any], method: str, path: str, sent: Any
) -> None:
    """A new header of a response must be documented."""
    movie = (await (await client.post("/v1/movies", json=MOANA)).json())["movie"]
    response = await client.request(method, path.replace("{id}", str(movie["id"])), json=sent)

    described = document["paths"][path][method.lower()]["responses"][str(response.status)]
    if "$ref" in described:
        described = document["components"]["responses"][described["$ref"].split("/")[-1]]

    sent_back = {name.lower() for name in response.headers}
    components = document["components"]["headers"]
    required = {name.lower() for name in described["headers"] if components[name]["required"]}
    assert required <= sent_back - PLAIN <= {name.lower() for name in described["headers"]}


async def test_temporary_problems_have_retry_after(document: dict[str, Any]) -> None:
    """A client generator knows only the headers in the document."""
    problems = document["components"]["responses"].items()

    assert {slug for slug, response in problems if "Retry-After" in response["headers"]} == {
        "idempotency-key-in-use",
        "limit-reached",
        "unavailable",
    }


async def test_the_problem_of_a_malformed_header_is_documented(
    client: Client, document: dict[str, Any]
) -> None:
    """400 has several problems; the document names that of the header for each operation."""
    await client.post("/v1/movies", json=MOANA)

    for method, path, header, sent in (
        *(("GET", path, "If-None-Match", None) for path in ("/v1/movies", ID, "/v1/genres")),
        *(("GET", path, "If-None-Match", None) for path in ("/v1/openapi.json", "/v1/docs", FILE)),
        *((method, ID, "If-Match", MOANA) for method in ("PATCH", "PUT", "DELETE")),
        ("POST", "/v1/movies", "Idempotency-Key", MOANA),
    ):
        url = path.replace("{id}", "1").replace("{file}", "icon.svg")
        response = await client.request(method, url, json=sent, headers={header: '"'})
        slug = (await response.json())["type"].partition("#")[2]

        assert response.status == 400
        assert slug in get_problems(document["paths"][path][method.lower()], 400), (method, path)


def get_problems(operation: dict[str, Any], status: int) -> set[str]:
    """Return the slugs of the documented problems with this status."""
    described = operation["responses"][str(status)]
    if "$ref" in described:  # the only one
        return {described["$ref"].split("/")[-1]}
    return set(described["content"][problems.CONTENT_TYPE]["examples"])


async def test_examples_fit_their_schemas(document: dict[str, Any]) -> None:
    """Each example on the page is valid for its schema."""
    contents = [
        *(r["content"] for r in document["components"]["responses"].values()),
        *(o["requestBody"]["content"] for _, _, o in operations(document) if "requestBody" in o),
        *(
            answer["content"]
            for _, _, operation in operations(document)
            for answer in operation["responses"].values()
            if "content" in answer
        ),
    ]
    tried = 0
    for content in (each for by_type in contents for each in by_type.values()):
        validator = Draft202012Validator({**document, **content["schema"]})
        examples = [content["example"]] if "example" in content else []
        for example in content.get("examples", {}).values():
            name = example.get("$ref", "").split("/")[-1]
            examples.append(
                (document["components"]["examples"][name] if name else example)["value"]
            )
        for example in examples:
            validator.validate(example)
            tried += 1
    assert tried > 20


async def test_the_body_of_a_movie_is_strict(document: dict[str, Any]) -> None:
    """It has exact JSON types, only the four fields, and the limits of the rules."""
    validator = Draft202012Validator({**document, "$ref": "#/components/schemas/MovieInput"})

    assert validator.is_valid(MOANA)
    faults: tuple[dict[str, Any], ...] = (
        {"year": "2016"},
        {"year": 1887},
        {"title": ""},
        {"title": "x" * 501},
        {"runtime": 107},
        {"runtime": "107"},
        {"runtime": "0 mins"},
        {"genres": []},
        {"genres": ["a", "a"]},
        {"genres": ["a", "b", "c", "d", "e", "f"]},
        {"version": 1},
    )
    for broken in faults:
        assert not validator.is_valid({**MOANA, **broken}), broken


async def test_schemas_have_plain_names_and_mark_read_only_fields(document: dict[str, Any]) -> None:
    """Client generators name their types after the schemas."""
    schemas = document["components"]["schemas"]
    fields = schemas["Movie"]["properties"]

    assert {"Movie", "MovieInput", "MoviePatch", "Genre", "Problem", "FieldError"} <= schemas.keys()
    assert {name for name in fields if fields[name].get("readOnly")} == {
        *("id", "version", "created_at", "updated_at")
    }


async def test_every_kind_of_problem_is_on_the_page(client: Client) -> None:
    """Each `type` links to a section of the page, without JavaScript."""
    page = await (await client.get(problems.REFERENCE)).text()

    assert PROBLEM_TEXTS.keys() == problems.BY_SLUG.keys()
    for slug in problems.BY_SLUG:
        assert f'id="{slug}"' in page, slug
        assert f'href="#{slug}"' in page, slug
        assert example_json(slug)["detail"] != "None", slug


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/nowhere", ""),
        ("GET", "/v1/movies/1", ""),
        ("DELETE", "/v1/movies", ""),
        ("POST", "/v1/movies", "{"),
        ("POST", "/v1/movies", "{}"),
    ],
)
async def test_the_type_of_a_problem_leads_to_its_section(
    client: Client, method: str, path: str, body: str
) -> None:
    """The link of a real response leads to a section of the page."""
    problem = await (await client.request(method, path, data=body)).json()
    page, _, slug = problem["type"].partition("#")

    assert f'id="{slug}"' in await (await client.get(page)).text()


def test_a_status_without_a_section_has_no_dead_link() -> None:
    """An error without a description has the type about:blank (RFC 9457, 4.2.1)."""
    request = make_mocked_request("GET", "/")
    assign_request_id(request)

    response = problems.respond_http(request, 403)

    assert response.status == 403
    assert b'"type": "about:blank"' in response.body  # type: ignore[operator] # bytes here


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/openapi.json", "application/json"),
        ("/v1/docs", "text/html; charset=utf-8"),
        ("/v1/docs/reference.css", "text/css; charset=utf-8"),
        ("/v1/docs/reference.js", "text/javascript; charset=utf-8"),
        ("/v1/docs/icon.svg", "image/svg+xml; charset=utf-8"),
    ],
)
async def test_the_files_of_the_page_are_served_and_revalidated(
    client: Client, path: str, kind: str
) -> None:
    """They have the right type, nosniff, and a 304 without a body for cached files."""
    first = await client.get(path)
    again = await client.get(path, headers={"If-None-Match": f'"old", {first.headers["ETag"]}'})
    other = await client.get(path, headers={"If-None-Match": '"old"'})

    assert (first.status, first.headers["Content-Type"]) == (200, kind)
    assert first.headers["X-Content-Type-Options"] == "nosniff"
    assert first.headers["Cache-Control"] == "no-cache"
    assert (again.status, await again.read()) == (304, b"")
    assert again.headers["ETag"] == first.headers["ETag"]
    assert other.status == 200


async def test_a_file_that_the_page_does_not_have_is_not_found(client: Client) -> None:
    """Only files of the page are served; no path leads out of its folder."""
    for name in ("reference.html", "nothing.js", "..%2Freference.py", "%2e%2e"):
        assert (await client.get(f"/v1/docs/{name}")).status == 404


async def test_the_page_loads_nothing_from_elsewhere_and_nothing_inline(client: Client) -> None:
    """It has no CDN, font, inline script or style, and the policy would refuse them."""
    response = await client.get("/v1/docs")
    page = await response.text()
    policy = response.headers["Content-Security-Policy"]

    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", page)
    loaded = re.findall(r'(?:<script|<link|<img)[^>]*(?:src|href)="([^"]+)"', page)
    assert loaded
    for address in loaded:
        assert (await client.get(f"/v1/{address}")).status == 200
    style = await (await client.get("/v1/docs/reference.css")).text()
    assert not re.search(r"url\(|@import|@font-face", style)
