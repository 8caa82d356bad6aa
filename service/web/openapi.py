"""Builds the OpenAPI 3.1 document from the routes and the marshmallow schemas.

https://spec.openapis.org/oas/v3.1.0. It has the routes with an `Operation`. What all operations
share is added here: the request id, and the problems that any request can get. apispec turns
schemas and names of components into references. HEAD and OPTIONS are left out: they would be half
of a generated client.
"""

import re
from collections.abc import Iterable
from itertools import chain
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin
from marshmallow import Schema

from service import __version__
from service.web.context import WELL_FORMED_ID
from service.web.describe import IF_NONE_MATCH, STRING, ProblemSchema, parameter, response
from service.web.headers import POSITIONS
from service.web.problems import CONTENT_TYPE, find_problems, make_document
from service.web.route import Json, Operation, Route, Scope

DESCRIPTION = """\
A catalogue of movies over JSON and HTTP. Every error is a problem (RFC 9457); its `type` links to \
what happened and how to fix it. `HEAD` works wherever `GET` works, and `OPTIONS` everywhere."""
TOKEN_SCHEME = "token"  # noqa: S105 - the name of the security scheme
SECURITY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "mc_<id>_<secret>",
    "description": "The operator of the service gives tokens to clients, of the scope `read`, or"
    " `write`, which includes `read`.",
}
TAGS = {  # each operation has one of these
    "Movies": "The movies of the catalogue and their genres.",
    "Health": "Checks for probes and load balancers.",
    "Reference": "The description of this API.",
}


def _header(description: str, *, required: bool = True, **shape: Any) -> Json:
    return {"description": description, "required": required, "schema": STRING | shape}


# Every response header that clients may need.
HEADERS = {
    "X-Request-Id": _header(
        "The id of this request in the log.", pattern=f"^{WELL_FORMED_ID.pattern}$"
    ),
    "Location": _header("The path of what was created.", format="uri-reference"),
    "Idempotency-Replayed": _header(
        "`true` if this repeats an earlier response.", required=False, enum=["true"]
    ),
    "Preference-Applied": _header("`handling=lenient`."),
    "Link": _header("Links to the `first`, `prev` and `next` pages (RFC 8288).", required=False),
    "Changes-Cursor": _header("Where the feed of changes goes on.", required=False),
    "Total-Records": _header("With a stream: its movies.", required=False, type="integer"),
    "Catalogue-Position": _header("Of a write; send it with a `GET`.", required=False),
    "Upgrade": _header("`HTTP/1.1`."),
    "Retry-After": _header(
        "Seconds to wait before the next attempt.", required=False, type="integer", minimum=0
    ),
    "ETag": _header("The entity tag; it changes whenever the response does.", required=False),
    "Last-Modified": _header("The time of the last change, to the second."),
    "RateLimit-Policy": _header("The limit that was reached: its name, `q` units in `w` seconds."),
    "RateLimit": _header("What is left of the limit: `r` units, and more in `t` seconds."),
    "WWW-Authenticate": _header("`Bearer` (RFC 6750), and what is missing.", required=False),
    "Content-Location": _header("The path of what is in the response.", format="uri-reference"),
    "Cache-Control": _header("How long caches may keep it; for lists, the operator decides."),
}
REQUEST_ID_PARAMETER = parameter(
    "X-Request-Id",
    "header",
    f"Returned in the response and logged if it matches `{WELL_FORMED_ID.pattern}`.",
)
POSITION_PARAMETER = parameter(
    "Catalogue-Position",
    "header",
    "That of a write: the response shows at least that write. Several count as the highest.",
    pattern=f"^({POSITIONS.pattern})$",
)
BODY_PROBLEMS = ("malformed-body", "body-timeout", "validation-failed")
PARAMETER_PROBLEMS = {
    "Idempotency-Key": (
        "wrong-idempotency-key",
        "idempotency-key-in-use",
        "idempotency-key-reused",
    ),
    "If-Match": ("precondition-failed", "precondition-required"),
    "If-None-Match": ("malformed-header",),
}
# Of every operation with a scope; `malformed-header`: there are two Authorization headers.
SCOPE_PROBLEMS = ("malformed-header", "unauthorized", "limit-reached", "wrong-parameters")
COMMON_PROBLEMS = ("bad-request", "expectation-failed", "internal-error", "unavailable")


def build_document(routes: Iterable[Route], anonymous: Scope) -> Json:
    """Return the document of these routes; `anonymous`: the scope of requests without a token."""
    operations = [(route, route.operation) for route in routes if route.operation]
    tags = dict.fromkeys(operation.tag for _, operation in operations)
    spec = APISpec(
        title="The movie catalogue",
        version=__version__,
        openapi_version="3.1.0",
        info={
            "summary": "A strict JSON-over-HTTP catalogue of movies",
            "description": DESCRIPTION,
            "contact": {"name": "The operator of this service"},
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        servers=[{"url": "/", "description": "the service that this document comes from"}],
        tags=[{"name": name, "description": TAGS[name]} for name in tags],
        plugins=[MarshmallowPlugin(schema_name_resolver=_name_schema)],
    )
    spec.components.security_scheme(TOKEN_SCHEME, SECURITY_SCHEME)
    spec.components.parameter(
        REQUEST_ID_PARAMETER["name"], REQUEST_ID_PARAMETER["in"], REQUEST_ID_PARAMETER
    )
    for name, header in HEADERS.items():
        spec.components.header(name, header)
    for route, operation in operations:
        path = re.sub(r"\{(\w+):[^/]*\}", r"{\1}", route.path)
        described = _describe_route(spec, route, operation, anonymous)
        spec.path(path, operations={route.method.lower(): described})
    return dict(spec.to_dict())


def _name_schema(schema: Schema | type[Schema]) -> str:
    """Return the name of a schema; apispec finds the body of a PATCH by its own."""
    kind = schema if isinstance(schema, type) else type(schema)
    is_patch = isinstance(schema, Schema) and schema.partial is True
    return f"{kind.__name__.removesuffix('Input')}Patch" if is_patch else kind.__name__


def _describe_route(spec: APISpec, route: Route, operation: Operation, anonymous: Scope) -> Json:
    """Return the Operation Object; the components that it names are in the document."""
    scope = route.scope
    responses = {operation.status: operation.response}
    if operation.multi_status:
        responses[207] = operation.multi_status
    problems = operation.problems + (BODY_PROBLEMS if operation.body else ())
    if scope > Scope.READ:
        position = {"Catalogue-Position": "Catalogue-Position"}
        for status, each in responses.items():
            responses[status] = each | {"headers": each["headers"] | position}
        problems += ("forbidden", "origin-not-allowed")  # every client may read
    shared = (POSITION_PARAMETER,) if scope is Scope.READ else ()
    for each in operation.parameters:
        problems += PARAMETER_PROBLEMS.get(each["name"], ())
        problems += ("not-found",) if each["in"] == "path" else ()
    if IF_NONE_MATCH in operation.parameters:
        responses[304] = response("The response that the client has is current.", ("ETag",))
    security: list[Json] = []
    if scope:
        # Alternatives (OpenAPI 3.1, 4.8.30): a token with the scope, or none.
        security = [{TOKEN_SCHEME: [scope.name.lower()]}, *([{}] if scope <= anonymous else [])]
        problems += SCOPE_PROBLEMS
    return {
        "tags": [operation.tag],
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.description,
        "parameters": [*operation.parameters, *shared, "X-Request-Id"],
        "security": security,
        "responses": {**responses, **_add_problems(spec, problems + COMMON_PROBLEMS, route.path)},
        **({"requestBody": operation.body} if operation.body else {}),
    }


def _add_problems(spec: APISpec, slugs: Iterable[str], path: str) -> dict[int, str]:
    """Return the component of each status, and add it if it is new; its name has the slugs."""
    known = find_problems()
    kinds = [known[slug] for slug in sorted(set(slugs))]
    names = {}
    for status in sorted({kind.problem.status for kind in kinds}):
        same = [kind for kind in kinds if kind.problem.status == status]
        names[status] = ".".join(kind.problem.slug for kind in same)
        if names[status] not in spec.components.responses:
            examples = {
                each.problem.slug: {
                    "summary": each.problem.title,
                    "value": make_document(each.problem, each.detail, re.sub("{.*}", "7", path)),
                }
                for each in same
            }
            described = response(
                ", or ".join(each.problem.title for each in same),
                tuple(chain.from_iterable(each.header_names for each in same)),
                {CONTENT_TYPE: {"schema": ProblemSchema, "examples": examples}},
            )
            spec.components.response(names[status], described)
    return names
