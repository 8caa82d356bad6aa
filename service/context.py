"""The context of a request: its id, its trace, its client, and what is reported of it."""

from collections.abc import Callable
from dataclasses import dataclass

from service.errors import Refusal

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_LOGGED_LENGTH = 256  # characters of a path or a user agent; a request may have 8,190


@dataclass(slots=True, eq=False)
class RequestContext:
    """One object for each request; the comments name what sets each part."""

    # `Contexts.make`, before anything else:
    id: str
    method: str
    address: str  # of the client, as trusted proxies report it
    # Of its response, also if that is an error.
    headers: dict[str, str]
    trace_id: str | None = None  # that of the client's `traceparent`
    # `RequestCycle.respond`:
    deadline: float = 0.0  # by the loop's clock; streams and waits for changes add to it
    route: str | None = None  # its path in the table of routes; `stream_movies` sets its own
    min_transaction: int = 0  # that its reads must show
    # `RequestCycle.cancel_overdue`:
    is_overdue: bool = False
    # `AccessControl.require`:
    client_id: int | None = None  # if it has a valid token
    # `stream_movies`:
    has_left: Callable[[], bool] | None = None  # whether the client of a stream has gone
    # `problems.describe`, and `stream_movies` for a stream that breaks off:
    refusal: Refusal | None = None  # why the response is a 503
    reason: str | None = None  # of a 5xx, for the log
    # `DirectResponse.prepare`:
    written: int = 0  # bytes that were sent without aiohttp's writer
    # `Connection.handle_error`:
    parser_error: str | None = None  # the request is not valid HTTP: method and path are unknown
    # `Statements.fetch` and `Streams.stream`:
    transaction: int = 0  # that the response shows: of a write, its own
    total_rows: int | None = None  # of a stream

    @property
    def ids(self) -> dict[str, str]:
        """The fields that every log line about the request has."""
        ids = {"request_id": self.id}
        if self.trace_id:
            ids["trace_id"] = self.trace_id
        return ids

    @property
    def client(self) -> str:
        """The id of a client with a valid token, the address of any other."""
        return self.address if self.client_id is None else str(self.client_id)
