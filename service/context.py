"""The context of a request: its id, its trace, its client, and what is reported of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from multidict import istr

from service.errors import Refusal

POSITION = istr("Catalogue-Position")  # the header: a transaction that its sender has seen
TOTAL_RECORDS = "Total-Records"  # the header: the number of movies in a stream
TRACEPARENT = istr("traceparent")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_LOGGED_LENGTH = 256  # characters of a path or a user agent; a request may have 8,190


@dataclass(slots=True, eq=False)
class RequestContext:
    """One object for each request; the comments name what sets each part."""

    # `Contexts.make`, before anything else:
    id: str
    method: str
    address: str  # of the client, as trusted proxies report it
    # Of its response, also if that is an error. `report_shown` and `Statements.stream` add to them.
    headers: dict[str, str]
    trace_id: str | None = None  # that of the client's `traceparent`
    # `RequestCycle.respond`:
    deadline: float = 0.0  # by the loop's clock; streams and waits for changes add to it
    route: str | None = None  # its path in the table of routes; `stream_movies` sets its own
    must_show: int = 0  # a transaction that its reads must show; `require` sets a later one
    # `AccessControl.require`:
    client_id: int | None = None  # if it has a valid token
    # `stream_movies`:
    has_left: Callable[[], bool] | None = None  # whether the client of a stream has gone
    # `problems.describe`, and `stream_movies` for a stream that breaks off:
    refusal: Refusal | None = None  # why the response is a 503
    reason: str | None = None  # of a 5xx, for the log
    # `Connection.handle_error`:
    parser_error: str | None = None  # the request is not valid HTTP: method and path are unknown
    # `report_shown`:
    shown: int = 0  # a transaction that the response shows: of a write, its own

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

    def require(self, transaction: int) -> None:
        """Let the reads from now on show this transaction, or a later one."""
        self.must_show = max(self.must_show, transaction)


def report_shown(contexts: Iterable[RequestContext], transaction: int) -> None:
    """Let the responses say that their clients have seen this transaction, or a later one."""
    for context in contexts:
        if transaction > context.shown:
            context.shown = transaction
            context.headers[POSITION] = f"{transaction}"
