"""The operations on single movies: get, create, update, delete."""

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import orjson

from service.config import Sharing
from service.context import RequestContext
from service.database.batching import Batcher, Rows, Run, join_payloads, list_contexts
from service.database.query import Expected, Row
from service.database.statements import Statements
from service.errors import (
    Contended,
    Failure,
    Invalid,
    NotFound,
    PreconditionFailed,
    RuleBroken,
    Unavailable,
)
from service.movies.movie import COLUMN_TYPES, FIELDS, Movie


class Condition(NamedTuple):
    """The conditions of an update or delete; checked under the lock of the movie's row."""

    versions: list[int] | None = None  # the movie's version is one of these
    other_than: list[int] | None = None  # and none of these
    unmodified_since: datetime | None = None  # and it has not changed since, to the second


ALWAYS = Condition()


class NotChanged(Enum):
    """Why an existing movie was not changed."""

    CONDITION_FAILED = auto()
    LOCKED = auto()  # another session holds the row's lock; try again
    PREVENTED = auto()  # by a trigger of a DBA


Outcome = Movie | NotChanged  # of a change

CHANGED = {"transaction": int, "locked": bool, "done": bool, **COLUMN_TYPES}
QUERIES: Mapping[str, Expected] = {
    "get_movies": Expected(COLUMN_TYPES, [{"ids": "{}"}], "GET a movie"),
    "create_movies": Expected(
        {"transaction": int, "position": int, **COLUMN_TYPES},
        [{"movies": "[]"}],
        "POST a movie",
        writes=True,
    ),
    "update_movies": Expected(CHANGED, [{"updates": "[]"}], "PATCH and PUT a movie", writes=True),
    "delete_movies": Expected(CHANGED, [{"deletions": "[]"}], "DELETE a movie", writes=True),
}

LOCK_RETRY_S = 0.02  # while another session holds the lock of a movie


class Catalogue:
    """Get, create, update and delete movies; every method may raise `Unavailable`.

    What must stay true: a change sees the movie and its conditions under the lock of its row, so of
    two changes, the later one is made on top of the earlier one, or refused; of a movie that is
    locked elsewhere, only its own changes wait.

    Requests for the same operation that arrive together share one statement of queries/movies.sql.
    `reads`: the statements that get movies.
    """

    def __init__(
        self, statements: Statements, sharing: Sharing, reads: Statements | None = None
    ) -> None:
        self._statements = statements
        self._reads = reads or statements
        self._positions = itertools.count()
        rows = statements.metrics.shared_statement_rows.labels
        self._gets = Batcher(self._get, sharing, is_repeatable=True, rows_metric=rows("get_movies"))
        self._creates = Batcher(self._create, sharing, rows_metric=rows("create_movies"))
        update: Run[Outcome] = partial(self._change_several, "update_movies", "updates")
        delete: Run[Outcome] = partial(self._change_several, "delete_movies", "deletions")
        self._updates = Batcher(update, sharing, exclusive=True, rows_metric=rows("update_movies"))
        self._deletes = Batcher(delete, sharing, exclusive=True, rows_metric=rows("delete_movies"))

    async def get(self, movie_id: int, context: RequestContext | None = None) -> Movie:
        """Return the movie; raises `NotFound`. `context`: of the request, for logs."""
        movie = await self._gets.submit(movie_id, context=context)
        if movie is None:
            raise NotFound("movie")
        return movie

    async def create(
        self, fields: Mapping[str, object], context: RequestContext | None = None
    ) -> Movie:
        """Create a movie from all of `FIELDS`; raises `Invalid` if the database refuses it."""
        position = next(self._positions)
        payload = orjson.dumps({"position": position, **fields})
        try:
            movie = await self._creates.submit(position, payload, context)
        except RuleBroken as error:
            raise to_invalid(error) from error
        if movie is None:
            raise self._statements.report("create_movies", "it returned no row for a movie")
        return movie

    async def update(
        self,
        movie_id: int,
        changes: Mapping[str, object],
        condition: Condition = ALWAYS,
        context: RequestContext | None = None,
    ) -> Movie:
        """Change the given fields of the movie, in one atomic statement.

        Raises `NotFound`, `PreconditionFailed` or `Invalid`.
        """
        conditions = {} if condition is ALWAYS else condition._asdict()
        payload = orjson.dumps({"id": movie_id, "fields": changes, **conditions})
        return await self._change("update_movies", movie_id, payload, context)

    async def delete(
        self, movie_id: int, condition: Condition = ALWAYS, context: RequestContext | None = None
    ) -> Movie:
        """Delete the movie and return it.

        Raises `NotFound`, `PreconditionFailed`, or `Invalid` if a foreign key refers to it.
        """
        payload = orjson.dumps({"id": movie_id, **condition._asdict()})
        return await self._change("delete_movies", movie_id, payload, context)

    async def _change(
        self,
        query: str,
        movie_id: int,
        payload: bytes,
        context: RequestContext | None,
    ) -> Movie:
        """Submit the row, and again while another session holds the movie's lock."""
        batcher = self._updates if query == "update_movies" else self._deletes
        give_up = 0.0
        try:
            while (result := await batcher.submit(movie_id, payload, context)) is NotChanged.LOCKED:
                give_up = give_up or time.monotonic() + self._statements.timeout
                if time.monotonic() > give_up:
                    raise Contended(f"movie {movie_id} is locked")
                await asyncio.sleep(LOCK_RETRY_S)
        except RuleBroken as error:
            raise to_invalid(error) from error
        if result is None:
            raise NotFound("movie")
        if result is NotChanged.PREVENTED:
            raise self._statements.report(query, "no change: did a trigger prevent it?")
        if isinstance(result, NotChanged):
            raise PreconditionFailed
        return result

    async def _get(self, rows: Rows[Movie]) -> dict[int, Movie]:
        return await self.get_several([row.key for row in rows], list_contexts(rows))

    async def get_several(
        self, ids: Sequence[int], waiting: Sequence[RequestContext]
    ) -> dict[int, Movie]:
        """Return the movies that exist, by id, in one statement for the requests that wait."""
        try:
            # An array literal; the server parses it faster than `array[...]`.
            text = "{" + ",".join(map(str, ids)) + "}"
            fetched = await self._reads.fetch("get_movies", {"ids": text}, waiting=waiting)
        except Contended as error:
            # A read waits only for a lock on the whole table, so do not retry rows one by one.
            raise Unavailable(str(error), error.refusal) from error
        self._statements.require_sent("get_movies", [row[0] for row in fetched], ids)
        return {row[0]: Movie(*row) for row in fetched}

    async def _create(self, rows: Rows[Movie]) -> dict[int, Movie]:
        created = await self._write("create_movies", "movies", rows)
        self._statements.require_sent(
            "create_movies", [row[1] for row in created], [row.key for row in rows]
        )
        return {position: Movie(*movie) for _, position, *movie in created}

    async def _change_several(
        self, name: str, parameter: str, rows: Rows[Outcome]
    ) -> dict[int, Outcome]:
        fetched = await self._write(name, parameter, rows)
        ids = [row[3] for row in fetched]
        self._statements.require_sent(name, ids, [row.key for row in rows])
        results: dict[int, Outcome] = {}
        for _, is_locked, is_done, movie_id, *fields in fetched:
            if is_locked:
                results[movie_id] = NotChanged.LOCKED
            elif is_done:
                results[movie_id] = Movie(movie_id, *fields)
            else:
                is_prevented = is_done is None
                reason = NotChanged.PREVENTED if is_prevented else NotChanged.CONDITION_FAILED
                results[movie_id] = reason
        return results

    async def _write(self, name: str, parameter: str, rows: Rows[Any]) -> list[Row]:
        """Run a write that is shared by the requests of these rows."""
        sent = {parameter: join_payloads(rows)}
        return await self._statements.fetch(
            name, sent, max_affected=len(rows), waiting=list_contexts(rows)
        )


def to_invalid(broken: RuleBroken, field: str = "") -> Invalid:
    """Convert a violated constraint; `field`: else that of its name, movies_<field>_<rule>."""
    named = [name for name in FIELDS if broken.rule.startswith(f"movies_{name}_")]
    detail = f"breaks the rule {broken.rule}" if broken.rule else "is refused by the database"
    return Invalid([Failure(field or "".join(named), detail)])
