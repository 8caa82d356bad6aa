"""Tests the OpenAPI document and the page: complete, without dead links or foreign files."""

import json
import re
from collections.abc import Iterator
from inspect import unwrap
from typing import Any

import pytest
from conftest import MOANA, Client, Start
from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it has no types
from openapi_spec_validator import OpenAPIV31SpecValidator
from support import Execute, add_client, bearer, get_app

from service.errors import OperatorError
from service.web import reference
from service.web.problems import REFERENCE, find_problems
from service.web.reference import DOCS, DOCUMENTS

# Headers of HTTP itself, and headers for browsers, which the document leaves out.
PLAIN = {"content-encoding", "content-length", "content-type", "date", "server", "vary"}
PLAIN |= {"content-security-policy", "referrer-policy", "x-content-type-options"}
ID = "/v1/movies/{id}"
BATCH = "/v1/movies/batch"
LENIENT = {"Prefer": "handling=lenient", "Idempotency-Key": "a"}


async def fetch_document(client: Client) -> dict[str, Any]:
    """Return the document as clients get it."""
    return dict(await (await client.get("/v1/openapi.json")).json())


@pytest.fixture
async def document(client: Client) -> dict[str, Any]:
    """Return the document of a service with default settings."""
    return await fetch_document(client)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, method and operation."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def resolve(document: dict[str, Any], thing: dict[str, Any]) -> dict[str, Any]:
    """Return the component that a `$ref` leads to, or the thing itself."""
    found: Any = document
    for key in thing.get("$ref", "#").split("/")[1:]:
        found = found[key]
    return dict(found) if "$ref" in thing else thing


def list_parameters(document: dict[str, Any], path: str, method: str = "get") -> dict[str, Any]:
    """Return the parameters of an operation by their names."""
    parameters = document["paths"][path][method]["parameters"]
    return {each["name"]: each for each in (resolve(document, some) for some in parameters)}


async def test_every_route_is_in_the_document_and_nothing_else(
    client: Client, document: dict[str, Any]
) -> None:
    """The document has exactly the methods and paths of the application, but for HEAD.

    A generated client would have twice as many methods with HEAD and OPTIONS.
    """
    served = {
        (route.resource.canonical, route.method.lower())
        for route in get_app(client).router.routes()
        if route.resource and route.method != "HEAD"
    }

    described = {(path, method) for path, method, _ in operations(document)}

    assert described == served


async def test_the_document_is_valid_openapi(document: dict[str, Any]) -> None:
    """An independent validator accepts it as OpenAPI 3.1."""
    assert document["openapi"].startswith("3.1.")

    errors = list(OpenAPIV31SpecValidator(document).iter_errors())

    assert errors == []


READ, WRITE = {"token": ["read"]}, {"token": ["write"]}


@pytest.mark.parametrize(
    ("anonymous", "read", "write"),
    [("write", [READ, {}], [WRITE, {}]), ("read", [READ, {}], [WRITE]), ("none", [READ], [WRITE])],
)
async def test_each_operation_says_which_token_it_needs(
    start: Start, anonymous: str, read: list[Any], write: list[Any]
) -> None:
    """`{}` is there if the operation works without a token; the 401 and 403 are documented."""
    document = await fetch_document(await start(access__anonymous=anonymous))

    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, method, operation in operations(document):
        has_scope = not re.match("/(v1)?$|/v1/(healthcheck|docs|openapi.json)", path)
        is_read = method == "get"
        expected = read if is_read else write
        assert operation["security"] == (expected if has_scope else [])
        assert ("401" in operation["responses"]) == has_scope
        assert ("403" in operation["responses"]) == (has_scope and not is_read)


async def test_clients_can_be_generated(document: dict[str, Any]) -> None:
    """Methods are named after the ids of operations, types after schemas, values after sort orders.

    A method that the document has is never a 405. Some generators leave out fields with `readOnly`,
    such as the id, make no name of `-year`, take integers without a format for 32 bits, or an array
    with `uniqueItems` for a set, which is no JSON; `x-minimum` is apispec's, of a `Range`.
    """
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    schemas = document["components"]["schemas"]
    sort = list_parameters(document, "/v1/movies")["sort"]["schema"]
    names = dict(zip(sort["enum"], sort["x-enum-varnames"], strict=True))

    assert len(ids) == len(set(ids))
    for path, method, operation in operations(document):
        assert "417" in operation["responses"], (method, path)
        assert "405" not in operation["responses"], (method, path)
    assert {"Movie", "MovieInput", "MoviePatch", "Genre", "Problem", "FieldError"} <= schemas.keys()
    assert "index" not in map(str.lower, schemas)  # model/index.ts has all other files
    assert not re.search("readOnly|uniqueItems|x-m(in|ax)imum", json.dumps(document))
    assert (names["year"], names["-year"]) == ("YEAR", "YEAR_DESC")
    for name in ("Movie", "Change"):
        assert schemas[name]["properties"]["id"]["format"] == "int64"
    # One that is generated this year must accept the movies of the next one.
    years = [
        each["properties"]["year"] for each in schemas.values() if "year" in each["properties"]
    ]
    assert len(years) > 1
    assert not any("maximum" in year for year in years)


async def test_only_bodies_of_requests_refuse_other_fields(document: dict[str, Any]) -> None:
    """Responses may get new fields within /v1 (docs/clients/contract.md, Compatibility)."""
    schemas = document["components"]["schemas"].items()

    strict = {name for name, schema in schemas if schema.get("additionalProperties") is False}
    assert strict == {name for name, _ in schemas if re.search("(Batch|Input|Patch)$", name)}


Request = tuple[str, str, int, dict[str, Any]]  # its method, path, status and options
REQUESTS: tuple[Request, ...] = (
    ("GET", "/", 200, {}),
    ("GET", "/v1", 200, {}),
    ("GET", "/v1/healthcheck", 200, {}),
    ("GET", "/v1/healthcheck/ready", 200, {}),
    ("GET", "/v1/openapi.json", 200, {}),
    ("GET", "/v1/docs", 400, {"headers": {"If-None-Match": "7"}}),
    ("GET", "/v1/movies", 200, {}),
    ("GET", "/v1/movies", 400, {"headers": {"If-None-Match": "7"}}),
    ("GET", "/v1/movies", 422, {"params": {"page": "x"}}),
    ("POST", "/v1/movies", 400, {"json": MOANA, "headers": {"Idempotency-Key": '"'}}),
    ("POST", "/v1/movies", 422, {"json": {"title": ""}}),
    ("POST", "/v1/movies", 201, {"json": MOANA}),
    ("GET", "/v1/genres", 200, {}),
    ("POST", BATCH, 201, {"json": {"movies": [MOANA]}}),
    ("POST", BATCH, 207, {"json": {"movies": [MOANA, 1]}, "headers": LENIENT}),
    ("POST", BATCH, 207, {"json": {"movies": [MOANA]}, "headers": LENIENT}),  # replayed
    ("POST", BATCH, 422, {"json": {}}),
    ("POST", "/v1/movies", 401, {"headers": {"Authorization": "Bearer x"}}),
    ("POST", "/v1/movies", 403, {"headers": {"Sec-Fetch-Site": "cross-site"}}),
    ("GET", ID, 200, {}),
    ("GET", ID, 304, {"headers": {"If-None-Match": "*"}}),
    ("PATCH", ID, 200, {"json": MOANA}),
    ("PUT", ID, 200, {"json": MOANA}),
    ("PUT", ID, 400, {"json": MOANA, "headers": {"If-Match": "7"}}),
    ("GET", "/v1/movies", 200, {"params": {"page": "1"}}),
    ("GET", "/v1/movies", 200, {"params": {"page_size": "0"}}),
    ("GET", "/v1/movies", 200, {"params": {"id": "1,9"}}),
    ("GET", "/v1/movies", 200, {"params": {"external_id": "a:1,a:2"}}),
    ("GET", "/v1/movies", 200, {"params": {"facets": "genres,year,runtime"}}),
    ("GET", "/v1/movies", 200, {"params": {"title": "moanna"}}),  # with suggestions
    ("GET", "/v1/movies", 304, {"headers": {"If-None-Match": "*"}}),
    ("GET", "/v1/genres", 304, {"headers": {"If-None-Match": "*"}}),
    ("GET", "/v1/docs", 304, {"headers": {"If-None-Match": "*"}}),
    ("GET", "/v1/docs/{file}", 304, {"headers": {"If-None-Match": "*"}}),
    ("GET", "/v1/openapi.json", 304, {"headers": {"If-None-Match": "*"}}),
    ("GET", "/v1/changes", 200, {}),
    ("PUT", BATCH, 200, {"json": {"movies": [MOANA | {"external_id": "a:1"}]}}),
    ("POST", "/v1/movies", 409, {"json": MOANA | {"external_id": "a:1"}}),
    ("PATCH", BATCH, 200, {"json": {"movies": [{"id": 2, "year": 2017}]}}),
    ("PATCH", BATCH, 207, {"json": {"movies": [{"id": 99}]}, "headers": LENIENT}),
    ("POST", f"{BATCH}/delete", 200, {"json": {"movies": [{"id": 2}]}}),
    ("DELETE", ID, 200, {}),
    ("DELETE", ID, 404, {}),
    ("POST", f"{ID}/restore", 200, {}),
    ("POST", f"{ID}/restore", 409, {}),
    ("POST", f"{BATCH}/restore", 200, {"json": {"movies": [{"id": 2}]}}),
    (
        "POST",
        f"{BATCH}/restore",
        207,
        {"json": {"movies": [{"id": 2, "version": 1}]}, "headers": LENIENT},
    ),
    ("GET", "/v1/changes", 200, {}),  # with a movie that is gone
    ("GET", f"{ID}/changes", 200, {}),
    ("GET", f"{ID}/changes", 200, {"params": {"limit": "1"}}),
    ("GET", "/v1/movies", 429, {"params": {"id": "1,9"}}),
)


def forbid_other_fields(described: Any) -> None:
    """Make each schema of an object as strict as those of requests."""
    if isinstance(described, list):
        for each in described:
            forbid_other_fields(each)
    elif isinstance(described, dict):
        if isinstance(described.get("properties"), dict):
            described["additionalProperties"] = False
        for each in described.values():
            forbid_other_fields(each)


def list_members(
    document: dict[str, Any], described: dict[str, Any], bodies: list[Any] | None = None
) -> set[tuple[str, str]]:
    """Return each documented member with its schema; of those, only the members in `bodies`."""
    members = set[tuple[str, str]]()
    inner = resolve(document, described)
    if "items" in inner:
        elements = None if bodies is None else [each for body in bodies for each in body]
        members |= list_members(document, inner["items"], elements)
    for name, member in inner.get("properties", {}).items():
        values = None if bodies is None else [body[name] for body in bodies if name in body]
        if values != []:
            members.add((described["$ref"], name))
            members |= list_members(document, member, values)
    return members


async def test_headers_and_bodies_are_documented(start: Start, execute: Execute) -> None:
    """Each status has the headers that are sent, and each body only fields of its schema.

    Each field of a schema comes in some body. The kind of problem is one of the examples.
    """
    client = await start(limits__rate=1, limits__burst=300, service__commit="4a74d18")
    document = await fetch_document(client)
    forbid_other_fields(document)
    reader, writer = (bearer(add_client(execute, scope)) for scope in ("read", "write"))
    execute(
        "insert into movies (id, title, year, runtime, genres) overriding system value"
        " values (1000, 'x', 2000, 1, '{x}')"
    )
    documented, seen = set[tuple[str, str]](), set[tuple[str, str]]()
    weak: Request = ("POST", "/v1/movies", 403, {"headers": reader})
    put = {"title": "x", "year": 2000, "runtime": "1 mins", "genres": ["x"], "external_id": "a:2"}
    by_token: list[Request] = [
        ("PUT", ID, 200, {"json": put, "headers": writer}),
        ("GET", f"{ID}/changes", 200, {"headers": writer}),
        ("GET", "/v1/changes", 200, {"headers": writer}),
    ]
    for method, path, status, sent in (weak, *REQUESTS[:-1], *by_token, REQUESTS[-1]):
        url = path.replace("{id}", "1").replace("{file}", "reference.css")
        response = await client.request(method, url, **sent)
        while status == 429 != response.status:
            response = await client.request(method, path, **sent)
        operation = document["paths"][path][method.lower()]
        described = resolve(document, operation["responses"][str(status)])

        assert response.status == status, (method, path)
        names = {name.lower(): resolve(document, it) for name, it in described["headers"].items()}
        sent_names = {name.lower() for name in response.headers} - PLAIN
        assert sent_names <= names.keys(), (method, path, status)
        required = {name for name, header in names.items() if header["required"]}
        assert required <= sent_names, (method, path, status)
        if "content" in described and path != "/v1/openapi.json":
            content = described["content"][response.content_type]
            body = await response.json(content_type=None)
            Draft202012Validator({**document, **content["schema"]}).validate(body)
            documented |= list_members(document, content["schema"])
            seen |= list_members(document, content["schema"], [body])
            if status >= 400:
                assert body["type"].partition("#")[2] in content["examples"], (method, path)
    assert documented == seen


async def test_pages_of_other_origins_can_use_every_documented_header(start: Start) -> None:
    """CORS allows the headers of requests, and exposes those of responses."""
    client = await start(server__cors_origins=("*",))
    document = await fetch_document(client)
    origin = {"Origin": "https://pages.example"}

    preflight = await client.options(
        "/v1/movies", headers={**origin, "Access-Control-Request-Method": "GET"}
    )
    response = await client.get("/v1/movies", headers=origin)

    parameters = [resolve(document, p) for _, _, o in operations(document) for p in o["parameters"]]
    sent = {parameter["name"] for parameter in parameters if parameter["in"] == "header"}
    assert sent <= set(preflight.headers["Access-Control-Allow-Headers"].split(", "))
    safelisted = {"Cache-Control", "Last-Modified"}  # https://fetch.spec.whatwg.org/
    exposed = set(response.headers["Access-Control-Expose-Headers"].split(", "))
    assert document["components"]["headers"].keys() - safelisted <= exposed


async def test_temporary_problems_have_retry_after(document: dict[str, Any]) -> None:
    """A client generator knows only the headers in the document."""
    responses = document["components"]["responses"].items()

    assert {slug for slug, response in responses if "Retry-After" in response["headers"]} == {
        "external-id-taken.idempotency-key-in-use",
        "limit-reached",
        "unavailable",
    }


async def test_examples_fit_their_schemas(document: dict[str, Any]) -> None:
    """Each example on the page is valid for its schema."""
    described = [
        resolve(document, r) for _, _, o in operations(document) for r in o["responses"].values()
    ]
    described += [o["requestBody"] for _, _, o in operations(document) if "requestBody" in o]
    tried = 0
    for content in (each for one in described for each in one.get("content", {}).values()):
        validator = Draft202012Validator({**document, **content["schema"]})
        named = [resolve(document, each) for each in content.get("examples", {}).values()]
        examples = [content["example"]] if "example" in content else []
        for example in [*examples, *(each["value"] for each in named)]:
            validator.validate(example)
            tried += 1
    assert tried > 20


async def test_examples_do_not_contradict_themselves(document: dict[str, Any]) -> None:
    """Tags have the version of their movie, changes that of theirs; problems, a path that exists.

    A result of a lenient batch has the path of the batch.
    """
    tagged = 0
    for path, _, operation in operations(document):
        for described in operation["responses"].values():
            for content in resolve(document, described).get("content", {}).values():
                for each in list_objects([content.get("example"), content.get("examples")]):
                    if "etag" in each:
                        assert each["etag"].startswith(f'"{each["id"]}-{each["version"]}')
                        assert each["version"] == each.get("movie", each)["version"]
                        tagged += 1
                    if "problem" in each:
                        assert each["problem"]["instance"] == path
                    if "instance" in each:
                        assert each["instance"].replace("7", "{id}") in document["paths"]
    assert tagged > 10
    responses = document["components"]["responses"]
    places = {
        slug: example["value"]["instance"]
        for response in responses.values()
        for slug, example in response["content"]["application/problem+json"]["examples"].items()
    }
    assert places["cursor-expired"] == "/v1/changes"
    assert places["not-kept"].endswith("/restore")


def list_objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each object in a value, however deep."""
    if isinstance(value, dict):
        yield value
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from list_objects(each)


async def test_the_body_of_a_movie_is_strict(document: dict[str, Any]) -> None:
    """It has exact JSON types, and only the fields that clients send; `rules.py` has its limits."""
    validator = Draft202012Validator({**document, "$ref": "#/components/schemas/MovieInput"})

    assert validator.is_valid(MOANA)
    faults: tuple[dict[str, Any], ...] = (
        {"year": "2016"},
        {"title": ""},
        {"runtime": 107},
        {"runtime": "107"},
        {"runtime": "0 mins"},
        {"genres": []},
        {"version": 1},
    )
    for broken in faults:
        assert not validator.is_valid({**MOANA, **broken}), broken


async def test_arrays_are_separated_by_commas(client: Client, document: dict[str, Any]) -> None:
    """As the guides have them: a proxy that validates takes `id=1,2` for two ids.

    Generated clients take a list, and many of them repeat the parameter, whatever the style says.
    """
    parameters = list_parameters(document, "/v1/movies")
    arrays = {name: each for name, each in parameters.items() if each["schema"]["type"] == "array"}

    assert arrays.keys() == {"id", "external_id", "genres", "genres_any", "facets"}
    for each in arrays.values():
        assert (each["style"], each["explode"]) == ("form", False)
    validator = Draft202012Validator(arrays["genres"]["schema"])
    assert validator.is_valid(["animation", "family"])
    assert not validator.is_valid(["animation,family"])
    for query in ("id=1,2", "id=1&id=2", "facets=year,genres", "facets=year&facets=genres"):
        assert (await client.get(f"/v1/movies?{query}")).status == 200


async def test_strings_and_tags_have_patterns_of_what_is_accepted(document: dict[str, Any]) -> None:
    """NUL and blank text are refused, as the service does it, and entity tags are as RFC 9110."""
    query = list_parameters(document, "/v1/movies")
    fields = document["components"]["schemas"]["MovieInput"]["properties"]
    get, patch = (list_parameters(document, ID, method) for method in ("get", "patch"))
    cases = [
        (fields["title"], ("Up", " a\n"), ("", " ", "a\0", "\0")),
        (fields["genres"]["items"], ("war", "a, b"), ("", " ", "a\0")),
        (query["title"]["schema"], ("cas*",), ("", "a\0")),
        (query["genres"]["schema"]["items"], ("war",), ("", " ", "a,b", "a\0")),
        *(
            (
                tags["schema"],
                ("*", '"7-1"', 'W/"7-1"', ', "a" ,, "b"'),
                ("", "7-1", '"7-1', '"a" "b"'),
            )
            for tags in (get["If-None-Match"], patch["If-Match"], patch["If-None-Match"])
        ),
    ]
    for schema, right, wrong in cases:
        validator = Draft202012Validator(schema)
        assert [text for text in right if not validator.is_valid(text)] == []
        assert [text for text in wrong if validator.is_valid(text)] == []


async def test_the_examples_of_all_parameters_go_together(
    client: Client, document: dict[str, Any]
) -> None:
    """Tools send them all at once; so `id`, which allows no other parameter, has none."""
    for path in ("/v1/movies", "/v1/changes"):
        examples = {
            name: str(each["schema"]["examples"][0])
            for name, each in list_parameters(document, path).items()
            if each["in"] == "query" and "examples" in each["schema"]
        }
        assert (await client.get(path, params=examples)).status == 200


async def test_the_type_of_a_problem_leads_to_its_section(client: Client) -> None:
    """Every kind of problem has a section on the page and a link to it, without JavaScript."""
    page = await (await client.get(REFERENCE)).text()
    problem = await (await client.get("/nowhere")).json()

    assert problem["type"] == f"{REFERENCE}#not-found"
    for slug in find_problems():
        assert f'id="{slug}"' in page, slug
        assert f'href="#{slug}"' in page, slug
    assert find_problems()["not-found"].detail == "there is no movie with this id"  # its example


async def test_the_documents_are_on_the_page(client: Client) -> None:
    """All sections, without JavaScript; each link leads somewhere, and no id is there twice."""
    page = await (await client.get("/v1/docs")).text()

    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert set(re.findall(r'href="([^#h][^"]*)"', page)) == {
        *("docs/icon.svg", "docs/reference.css", "openapi.json"),
        *("docs/movies.mjs", "docs/movies.py"),
    }
    texts = [(DOCS / name).read_text() for name in DOCUMENTS]
    sections = sum(len(re.findall("(?m)^## ", text)) for text in texts)
    assert page.count("<h3 id=") == sections
    assert "<table>" in page
    assert "<!--" not in page


FILES = {
    "/v1/openapi.json": "application/json",
    "/v1/docs": "text/html; charset=utf-8",
    "/v1/docs/reference.css": "text/css; charset=utf-8",
    "/v1/docs/reference.js": "text/javascript; charset=utf-8",
    "/v1/docs/icon.svg": "image/svg+xml; charset=utf-8",
    "/v1/docs/movies.mjs": "text/plain; charset=utf-8",
    "/v1/docs/movies.py": "text/plain; charset=utf-8",
}


async def test_the_files_of_the_page_are_served_and_revalidated(client: Client) -> None:
    """They have the right type, nosniff, and a 304 without a body for cached files."""
    for path, kind in FILES.items():
        first = await client.get(path)
        again = await client.get(path, headers={"If-None-Match": f'"old", {first.headers["ETag"]}'})
        assert (first.status, first.headers["Content-Type"]) == (200, kind)
        assert first.headers.getall("X-Content-Type-Options") == ["nosniff"]
        assert first.headers.getall("Cache-Control") == ["no-cache"]
        assert (again.status, await again.read()) == (304, b"")
        assert again.headers["ETag"] == first.headers["ETag"]


async def test_a_file_that_the_page_does_not_have_is_not_found(client: Client) -> None:
    """Only files of the page are served; no path leads out of its folder."""
    for name in ("reference.html", "nothing.js", "..%2Freference.py", "%2e%2e"):
        assert (await client.get(f"/v1/docs/{name}")).status == 404


def test_a_file_that_is_missing_prevents_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the page would be without its style or script, or a client to copy."""
    monkeypatch.setitem(reference.PAGE_FILES, "missing.css", "text/css")

    with pytest.raises(OperatorError, match=r"missing\.css: cannot be read: No such file"):
        unwrap(reference.read_contents)()  # without its cache


async def test_the_policy_of_the_page_allows_nothing_from_elsewhere(client: Client) -> None:
    """No other host, no inline script, no inline style."""
    (policy,) = (await client.get("/v1/docs")).headers.getall("Content-Security-Policy")

    sources = {source for part in policy.split("; ") for source in part.split()[1:]}
    assert policy.startswith("default-src 'none'")
    assert sources == {"'none'", "'self'"}
