"""One movie as an answer that leaves in one piece: most of what the service answers.

aiohttp makes answers of every kind of a multidict, in six coroutines. This one is a string and a
write, which makes a read a fifth cheaper.
"""

from collections.abc import Mapping

from aiohttp import ClientConnectionResetError, HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter

JSON = "application/json"


class MovieResponse(web.StreamResponse):
    """An answer with this body and these headers, in ASCII, beside those that all answers carry.

    To a client of HTTP/1.0, to one that wants the headers alone, where pages of other origins are
    allowed, and at the end of a connection, aiohttp writes it as any other.
    """

    _send_headers_immediately = False  # aiohttp's: they wait for the body

    def __init__(self, body: bytes, *, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status=status)
        self._content = body
        self._own = headers
        self._common = ""

    def leave_at_once(self, request: web.BaseRequest, common: str) -> bool:
        """Whether it will leave in one piece, with these lines of the common headers."""
        if (
            self._keep_alive is None  # nobody has decided to end the connection
            and request.keep_alive
            and request.version == HttpVersion11
            and request.method != hdrs.METH_HEAD
        ):
            self._common = common
            self._keep_alive = True
            return True
        return False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write all of it, or let aiohttp begin."""
        if not self._common:
            self.headers.update(self._own)
            self.content_type = JSON
            self.content_length = len(self._content)
            return await super().prepare(request)
        own = "".join([f"{name}: {value}\r\n" for name, value in self._own.items()])
        head = (
            f"HTTP/1.1 {self.status} {self.reason}\r\n{self._common}{own}"
            f"Content-Type: {JSON}\r\nContent-Length: {len(self._content)}\r\n\r\n"
        )
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has gone")
        transport.write(head.encode("ascii") + self._content)
        if transport.get_write_buffer_size():
            await request.writer.drain()  # who asks without reading is not read from any further
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """End what `prepare` has left to aiohttp."""
        if not self._common:
            await super().write_eof(b"" if self._must_be_empty_body else data or self._content)
