"""Streams all rows of a read, from one snapshot, to a client that may read them slowly."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

import psycopg2

from service.context import RequestContext
from service.database.query import Execution, Parameters, Row, describe_error
from service.database.statements import SILENCE_MAX_S, Statements

RowLists = AsyncGenerator[list[Row]]

ROWS = 250  # at once; the event loop then waits for a few ms
MIN_ROWS_PER_S = 500.0  # for a client to read while others wait for its place
LAG_MAX_S = 5.0  # how far it may fall behind that
TIMEOUT_S = 20.0  # for the first rows, which may need a sort; platforms wait for 30 s
BEGIN = "begin isolation level repeatable read, read only; "


@dataclass(eq=False)
class Streams(Statements):
    """Statements that can also be streamed; each holds a place of `limit` and its connection.

    What must stay true: all rows are of one snapshot; the transaction has ended when the connection
    goes back to the pool; a client that reads slowly keeps its place only while nobody waits for
    one.
    """

    _wanted_at: float = field(default=-inf, init=False)  # when a stream last waited for a place

    async def stream(self, name: str, context: RequestContext, parameters: Parameters) -> RowLists:
        """Yield all rows of a read; raises as `fetch` does.

        Their number is counted first, and becomes a header of the response: 1 to 9 % of the time.
        Close it (`contextlib.aclosing`). Raises `ConnectionResetError` if its client has gone
        before the statement is sent, or reads too slowly while others wait for its place.
        """
        query = self.queries[name]
        count = f"select {query.comment} count(*) from ({query.sql}) as stream"
        declare = f"declare catalogue_stream no scroll cursor for {query.sql}"
        preamble = query.build_preamble(TIMEOUT_S, BEGIN)
        opening = Execution(preamble, TIMEOUT_S + SILENCE_MAX_S, f"{declare}; {count}")
        fetch = f"fetch {query.comment} {ROWS} from catalogue_stream"
        next_rows = opening._replace(preamble="", statement=fetch)
        loop, lag = asyncio.get_running_loop(), 0.0  # of the client, in seconds
        if self._reads and self._reads.locked():
            self._wanted_at = loop.time()
        async with self.pool.connection(self._reads) as connection:
            if context.has_left and context.has_left():  # while it waited for its place
                raise ConnectionResetError("the client has gone")
            try:
                given = parameters, [context], connection
                ((context.total_rows,),) = await self._run(query, opening, *given)
                while rows := await self._run(query, next_rows, *given):
                    sent_at = loop.time()
                    yield rows
                    lag = max(0, lag + loop.time() - sent_at - len(rows) / MIN_ROWS_PER_S)
                    if lag > LAG_MAX_S and self._wanted_at >= sent_at:
                        self._wanted_at = -inf  # one place is enough
                        raise ConnectionResetError("the client reads too slowly")
            except psycopg2.Error as error:  # the connection broke
                raise self._to_unavailable(query, describe_error(error)) from error
            finally:
                with suppress(psycopg2.Error, TimeoutError):  # the pool then discards it
                    async with connection.cursor(timeout=SILENCE_MAX_S) as cursor:
                        await cursor.execute("rollback")
