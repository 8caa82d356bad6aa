"""The context of a request: its id, its trace, its client, and what is reported of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from service.errors import Refusal

if TYPE_CHECKING:
    from service.spans import RequestSpan

POSITION = "Catalogue-Position"  # the header: a transaction that its sender has seen
TOTAL_RECORDS = "Total-Records"  # the header: the number of movies in a stream
MAX_LOGGED_LENGTH = 256  # characters of a path or a user agent; a request may have 8,190


@dataclass(slots=True, eq=False)
class RequestContext:
    """One object for each request; each part is set where it becomes known."""

    id: str
    method: str
    address: str  # of the client, as trusted proxies report it
    headers: dict[str, str]  # of its response, also if that is an error
    deadline: float = 0.0  # by the loop's clock; a handler that needs more time raises it
    position: int = 0  # a transaction that a read must show; of a write, its own
    is_last: bool = False  # its connection ends with the response
    trace_id: str | None = None
    span: "RequestSpan | None" = None  # if the request is traced
    client_id: int | None = None  # if it has a valid token
    route: str | None = None  # its path in the table of routes
    has_left: Callable[[], bool] | None = None  # of a stream: whether its client has gone
    expects_continue: bool = False  # the client waits for `100 Continue` before it sends the body
    sent_bytes: int = 0  # by `DirectResponse`, past aiohttp's writer; 0: aiohttp counts
    refused_status: int | None = None  # if the head is too large, or has an unknown `Expect`
    parser_error: str | None = None  # the request is not valid HTTP: method and path are unknown
    refusal: Refusal | None = None  # why the response is a 503
    reason: str | None = None  # of a 5xx, for the log

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


def report_position(contexts: Iterable[RequestContext], transaction: int) -> None:
    """Let the responses say that their clients have seen this transaction, or a later one."""
    for context in contexts:
        if transaction > context.position:
            context.position = transaction
            context.headers[POSITION] = f"{transaction}"
