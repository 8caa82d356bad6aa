"""Tests the trace of a request in the log: `traceparent` of W3C's Trace Context."""

from conftest import Client
from multidict import CIMultiDict
from support import Capture

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


async def log_request(client: Client, capsys: Capture, *traceparents: str) -> str:
    """Send a request with these headers, and return its access line."""
    headers = CIMultiDict([("traceparent", each) for each in traceparents])
    await client.get("/v1", headers=headers)
    return capsys.readouterr().out


VALID = [
    *(f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00", "ff")),
    # Later versions may have more fields.
    f"01-{TRACE}-{PARENT}-01",
    f"cc-{TRACE}-{PARENT}-01-what-the-future-brings",
    f"cc-{TRACE}-{PARENT}-01-",
]
INVALID = [
    "",
    *(f"00-{TRACE}-{PARENT}{end}" for end in ("", "-1", "-01-more", "-01-", "-01.", "-0A", "0-01")),
    *(f"{version}-{TRACE}-{PARENT}-01" for version in ("ff", "0A")),
    *(f"00-{trace}-{PARENT}-01" for trace in ("0" * 32, TRACE.upper(), TRACE[:-1])),
    *(f"00-{TRACE}-{parent}-01" for parent in ("0" * 16, PARENT.upper())),
    f"cc-{TRACE}-{PARENT}-01.what",
    f"00_{TRACE}_{PARENT}_01",
]


async def test_the_access_line_has_the_trace(client: Client, capsys: Capture) -> None:
    """An invalid traceparent is ignored, and so are two: nobody can know which one is right."""
    for sent in VALID:
        assert f"trace_id={TRACE}" in await log_request(client, capsys, sent), sent
    for ignored in ([sent] for sent in INVALID), [[VALID[0], VALID[0]]]:
        for headers in ignored:
            logged = await log_request(client, capsys, *headers)
            assert "status=200" in logged
            assert "trace_id" not in logged, headers
