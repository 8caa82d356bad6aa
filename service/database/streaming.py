"""Streams all rows of a read, from one snapshot, to a client that may read them slowly."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import psycopg2

from service.database.caller import Caller
from service.database.pool import Pool
from service.database.query import Execution, Parameters, Row, describe_error
from service.database.statements import SILENCE_MAX_S, Statement, Statements
from service.errors import StatementFailed, Unavailable

ROWS = 250  # at once; the event loop then waits for a few ms
MIN_ROWS_PER_S = 500.0  # for a client to read while others wait for a slot
LAG_MAX_S = 5.0  # how far it may fall behind that
TIMEOUT_S = 20.0  # for the first rows, which may need a sort; platforms wait for 30 s
BEGIN = "begin isolation level repeatable read, read only; "


class Chunk(NamedTuple):
    """Some rows of a stream, and how many rows it has in all."""

    total: int
    rows: list[Row]


Chunks = AsyncGenerator[Chunk]


@dataclass(eq=False)
class Streams:
    """Streams statements; each holds a slot of their limit, and its connection.

    What must stay true: all rows are of one snapshot; the transaction has ended when the connection
    goes back to the pool; a client that reads slowly keeps its slot only while nobody waits for
    one.
    """

    statements: Statements
    # When a stream last waited for a slot, by pool.
    _wanted_at: dict[Pool, float] = field(default_factory=dict, init=False)

    async def stream(
        self, name: str, parameters: Parameters, caller: Caller, has_left: Callable[[], bool]
    ) -> Chunks:
        """Yield all rows of a read; one chunk without rows if there are none.

        They are counted first: 1 to 9 % of the time. `has_left`: whether the client has gone. Close
        it (`contextlib.aclosing`). Raises as `Statements.fetch` does, and `ConnectionResetError` if
        the client has gone before the statement is sent, or reads too slowly while others wait for
        a slot.
        """
        statements, first = self.statements, list[Chunk]()
        query = statements.queries[name]
        count = f"select {query.comment} count(*) from ({query.sql}) as stream"
        declare = f"declare catalogue_stream no scroll cursor for {query.sql}"
        preamble = query.build_preamble(TIMEOUT_S, BEGIN)
        execution = Execution(preamble, TIMEOUT_S + SILENCE_MAX_S, f"{declare}; {count}")
        opening = Statement(query, execution, parameters, [caller])
        chunks = self._stream(statements.pool, opening, has_left)
        if statements.standbys and (standby := statements.standbys.choose([caller])):
            on_standby = self._stream(standby.pool, opening, has_left)
            try:
                first = [await anext(on_standby)]
                chunks = on_standby
            except (StatementFailed, Unavailable) as error:
                standby.leave_out(error)
        async with aclosing(chunks):
            for chunk in first:
                yield chunk
            async for chunk in chunks:
                yield chunk

    async def _stream(self, pool: Pool, opening: Statement, has_left: Callable[[], bool]) -> Chunks:
        """Yield the rows from a server; `opening` returns how many there are."""
        statements, query = self.statements, opening.query
        fetch = f"fetch {query.comment} {ROWS} from catalogue_stream"
        fetching = opening._replace(
            execution=opening.execution._replace(preamble="", statement=fetch)
        )
        limit = statements.find_limit(pool)
        loop, lag = asyncio.get_running_loop(), 0.0  # of the client, in seconds
        if limit and limit.locked():
            self._wanted_at[pool] = loop.time()
        async with pool.connection(limit) as connection:
            if has_left():  # while it waited for a slot
                raise ConnectionResetError("the client has gone")
            try:
                ((total,),) = await statements.run(pool, opening, connection)
                is_first = True
                while (rows := await statements.run(pool, fetching, connection)) or is_first:
                    is_first, sent_at = False, loop.time()
                    yield Chunk(total, rows)
                    lag = max(0, lag + loop.time() - sent_at - len(rows) / MIN_ROWS_PER_S)
                    if lag > LAG_MAX_S and self._wanted_at.get(pool, -inf) >= sent_at:
                        del self._wanted_at[pool]  # one slot is enough
                        raise ConnectionResetError("the client reads too slowly")
            except psycopg2.Error as error:  # the connection broke
                raise statements.to_unavailable(query, describe_error(error)) from error
            finally:
                with suppress(psycopg2.Error, TimeoutError):  # the pool then discards it
                    async with connection.cursor(timeout=SILENCE_MAX_S) as cursor:
                        await cursor.execute("rollback")
