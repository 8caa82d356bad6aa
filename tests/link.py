"""A network to the database that tests can cut or stall."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs

import aiopg

PLAIN = "sslmode=disable&gssencmode=disable"


class Link:
    """Relays to the database, or refuses, or loses all that is sent."""

    def __init__(self, database: str, delay_s: float = 0) -> None:
        self._delay_s = delay_s  # of what the database sends
        self._base, _, query = database.partition("?")
        self._target = parse_qs(query)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._is_stalled = False
        self.port = 0
        self.connects = 0  # number of connection attempts

    @property
    def url(self) -> str:
        """The database's URL through this link."""
        return self.url_through("127.0.0.1", str(self.port))

    def url_through(self, hosts: str, ports: str) -> str:
        """The database's URL with these hosts and ports."""
        return f"{self._base}?host={hosts}&port={ports}&{PLAIN}"

    async def open(self) -> None:
        """Relay what new connections send."""
        self._is_stalled = False
        if not self._server:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def lead_to(self, database: str) -> None:
        """Relay new connections to this database."""
        self._target = parse_qs(database.partition("?")[2])

    def stall(self) -> None:
        """Accept new connections and keep the old ones, but lose what they send from now on."""
        self._is_stalled = True

    async def cut(self) -> None:
        """Break all connections and refuse further ones."""
        if self._server:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects += 1
        task: asyncio.Task[None] = asyncio.current_task()  # type: ignore[assignment] # in one
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        try:
            await self._relay(reader, writer)
        finally:
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target["host"][0], self._target["port"][0]
        their_reader, their_writer = await (
            asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
            if host.startswith("/")
            else asyncio.open_connection(host, int(port))
        )
        ways = [
            asyncio.create_task(self._copy(reader, their_writer)),
            asyncio.create_task(self._copy(their_reader, writer, self._delay_s)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            their_writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float = 0
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._is_stalled:
                    await asyncio.Event().wait()
                if delay_s:
                    await asyncio.sleep(delay_s)
                writer.write(data)


@asynccontextmanager
async def opened(database: str, delay_s: float = 0) -> AsyncIterator[Link]:
    """Open a link to a database, and cut it in the end; each response takes `delay_s` longer."""
    link = Link(database, delay_s)
    await link.open()
    try:
        yield link
    finally:
        await link.cut()


async def fetch_value(connection: aiopg.Connection, sql: str = "select 1") -> Any:
    """Run one statement and return the first value of its result."""
    async with connection.cursor() as cursor:
        await cursor.execute(sql)
        return (await cursor.fetchone())[0]
