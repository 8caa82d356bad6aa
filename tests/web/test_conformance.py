"""Compares the running service with its OpenAPI document, with schemathesis."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

from conftest import Start
from support import Execute, add_client

SETTINGS = """
[checks.positive_data_acceptance]
# Not useful here: a schema cannot express "this year", "500 bytes of UTF-8" or "1942, but
# not 1942.0", so the service rightly refuses some bodies that fit the schema.
enabled = false

[[operations]]
include-operation-id = [
  "create_movies", "put_movies", "update_movies", "delete_movies", "restore_movies",
]
[operations.checks.negative_data_rejection]
# A lenient batch has a result for each movie, also for a wrong one.
expected-statuses = ["207", "400", "401", "403", "404", "422", "429", "5xx"]
[operations.phases.stateful]
# It would take the last part of this path for the id of a movie.
enabled = false

[phases.stateful.inference]
# Inference by names would take X-Request-Id for the id of a movie.
algorithms = ["location-headers"]
"""


async def test_every_response_is_as_documented(
    start: Start, execute: Execute, environment: dict[str, str], tmp_path: Path
) -> None:
    """No 5xx; statuses, content types, headers and bodies are those of the document.

    Each operation requires a token that says so.
    """
    client = await start(access__anonymous="none")
    token = add_client(execute, "write")
    config = tmp_path / "schemathesis.toml"
    config.write_text(SETTINGS)
    uncovered = {k: v for k, v in environment.items() if not k.startswith("COVERAGE_")}

    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "schemathesis",
        f"--config-file={config}",
        "run",
        str(client.make_url("/v1/openapi.json")),
        "--max-examples=3",
        "--generation-deterministic",
        "--no-color",
        f"--header=Authorization: Bearer {token}",
        cwd=tmp_path,
        env=uncovered,  # without coverage, schemathesis is twice as fast
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()

    assert process.returncode == 0, output.decode()
    assert "errored" not in output.decode(), output.decode()
