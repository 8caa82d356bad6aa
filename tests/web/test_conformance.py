"""Compares the running service with its OpenAPI document, with schemathesis."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

from conftest import Client

SETTINGS = """
[checks.positive_data_acceptance]
# Unsound here: a schema cannot say "this year", "500 bytes of UTF-8", "no NUL character" or "1942,
# but not 1942.0", so that some of what fits it is refused, and rightly.
enabled = false

[[operations]]
# OPTIONS asks nothing of the database, and so answers for what is deleted as well.
include-method = "OPTIONS"
[operations.checks.use_after_free]
enabled = false

[phases.stateful.inference]
# It would also guess by names, and take X-Request-Id for the id of a movie.
algorithms = ["location-headers"]
"""


async def test_every_response_is_as_documented(
    client: Client, environment: dict[str, str], tmp_path: Path
) -> None:
    """No 5xx; statuses, content types, headers and bodies are those of the document."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(SETTINGS)
    uncovered = {k: v for k, v in environment.items() if not k.startswith("COVERAGE_")}

    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "schemathesis",
        f"--config-file={config}",
        "run",
        str(client.make_url("/v1/openapi.json")),
        "--max-examples=20",
        "--generation-deterministic",
        "--no-color",
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
