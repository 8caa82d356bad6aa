"""Passes the OpenAPI document to tools that clients use: linters and client generators.

Each runs where it is found on PATH; CONTRIBUTING.md has how to install them. schemathesis, which
sends requests, is in test_conformance.py.
"""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from conftest import Client

Run = Callable[..., Awaitable[str]]
QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}

# The rule knows only OpenAPI 3.0, where just OAuth2 has scopes. In 3.1 a bearer token may have
# roles, too (4.8.30; https://github.com/stoplightio/spectral/issues/2643).
SPECTRAL_RULES = """
extends: [["spectral:oas", "recommended"]]
rules:
  oas3-operation-security-defined: off
"""


@pytest.fixture
async def run(client: Client, tmp_path: Path) -> Run:
    """Run a tool in a folder with openapi.json, and return its output; or skip the test."""
    (tmp_path / "openapi.json").write_bytes(await (await client.get("/v1/openapi.json")).read())

    async def begin(*command: str, stderr: int = STDOUT) -> str:
        if not shutil.which(command[0]):
            pytest.skip(f"there is no {command[0]} on PATH")
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=tmp_path,
            env=os.environ | QUIET,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=stderr,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    return begin


def find(folder: Path, *patterns: str) -> list[Path]:
    """Return the files that a tool has made."""
    return [path for pattern in patterns for path in folder.glob(pattern)]


async def test_redocly_finds_nothing(run: Run) -> None:
    """Its recommended rules report neither errors nor warnings."""
    output = await run("redocly", "lint", "--format=json", "openapi.json", stderr=DEVNULL)

    assert json.loads(output)["problems"] == []


async def test_spectral_finds_nothing(run: Run, tmp_path: Path) -> None:
    """Its recommended rules report nothing, but for one rule that is wrong for OpenAPI 3.1."""
    (tmp_path / "rules.yaml").write_text(SPECTRAL_RULES)

    await run("spectral", "lint", "--fail-severity=hint", "--ruleset=rules.yaml", "openapi.json")


async def test_openapi_typescript_makes_strict_types(run: Run) -> None:
    """TypeScript accepts the types that it generates."""
    await run("openapi-typescript", "openapi.json", "--output=api.ts")
    await run("tsc", "--strict", "--noEmit", "api.ts")


async def test_openapi_python_client_leaves_nothing_out(run: Run, tmp_path: Path) -> None:
    """It warns of no operation or response that it cannot read, and makes all methods."""
    output = await run(
        *("openapi-python-client", "generate", "--path=openapi.json", "--output-path=made"),
        "--meta=none",
    )

    assert "WARNING" not in output
    assert "Unable" not in output
    assert len(find(tmp_path, "made/api/*/list_movies*.py")) == 3  # with HEAD and OPTIONS


@pytest.mark.parametrize("generator", ["python", "typescript-fetch"])
async def test_openapi_generator_makes_a_client(run: Run, tmp_path: Path, generator: str) -> None:
    """It recommends no change, and needs to make up no name for a method."""
    await run("java", "-version")
    advice = await run("openapi-generator-cli", "validate", "--recommend", "-i", "openapi.json")
    output = await run(
        *("openapi-generator-cli", "generate", "-i", "openapi.json", "-o", "made"),
        *("-g", generator),
    )

    assert "No validation issues detected" in advice
    assert "Empty operationId" not in output
    assert find(tmp_path, "made/**/[Mm]ovies*Api.ts", "made/**/movies_api.py")
