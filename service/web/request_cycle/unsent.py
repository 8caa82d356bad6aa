"""Limits the bytes that wait in memory for clients to read them."""

import asyncio
import socket
import struct
from contextlib import suppress
from math import inf

SEND_TIMEOUT_S = 30.0  # for a client to read a response
# A connection with more unsent bytes gets no further response; asyncio's default is 64 KiB.
WRITE_BUFFER_BYTES = 16_384
# The limit of all connections whose clients do not read. A page has up to 0.6 MB.
MAX_UNSENT_BYTES_IN_ALL = 32 * 1024 * 1024
RESET = struct.pack("ii", 1, 0)  # https://man7.org/linux/man-pages/man7/socket.7.html, SO_LINGER


class Outbox:
    """The unsent bytes of one connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport  # aiohttp forgets it before all is sent
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        # When bytes became unsent, by the loop's clock; None: all is sent, or a check will see that
        # some are not. Each response, and each part of a stream, has the whole time.
        self.since: float | None = None

    @property
    def size(self) -> int:
        """Bytes of responses that wait for the client to read."""
        return self._transport.get_write_buffer_size()

    def start_clock(self, now: float) -> None:
        """Count from now: the transport has much to send."""
        self.since = now

    def stop_clock(self) -> None:
        """Stop counting: the client has read what was sent."""
        self.since = None

    def check(self, now: float) -> None:
        """Reset the connection if its client has not read all for `SEND_TIMEOUT_S`."""
        if not self.size:
            self.since = None
        elif self.since is None:
            self.since = now
        elif now - self.since > SEND_TIMEOUT_S:
            self.reset()

    def reset(self) -> None:
        """Reset the connection: neither the process nor the kernel keeps what is unsent."""
        own: socket.socket = self._transport.get_extra_info("socket")
        with suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()


class Outboxes:
    """The unsent bytes of all connections together."""

    def __init__(self) -> None:
        self._open = set[Outbox]()
        self._bytes = 0  # at most; exact after each `limit`

    def add(self, outbox: Outbox) -> None:
        """Count those of a new connection, too."""
        self._open.add(outbox)

    def remove(self, outbox: Outbox) -> None:
        """Forget those of a connection that has ended."""
        self._open.discard(outbox)

    def note(self, number: int) -> None:
        """Add bytes that have just become unsent; if they are too many, do not wait for a check."""
        self._bytes += number
        if self._bytes > MAX_UNSENT_BYTES_IN_ALL:
            self.limit()

    def limit(self) -> None:
        """Reset connections if too many bytes are unsent in all, the longest unread first."""
        unread = [each for each in self._open if each.size]
        unread.sort(key=lambda each: each.since or inf)
        self._bytes = sum(each.size for each in unread)
        for each in unread:
            if self._bytes <= MAX_UNSENT_BYTES_IN_ALL:
                break
            self._bytes -= each.size
            each.reset()
