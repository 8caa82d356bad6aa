"""The peer a user would pick: FastAPI, pydantic and asyncpg, written as their manuals write it.

It gives the same fields on the same paths, in compact JSON. It is spared what the service does
besides: request ids, an access log, strict reading of bodies, timeouts, retries, the error shape.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated

import asyncpg
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, Field

SELECT = """
select id, title, year, runtime, genres, version, created_at, updated_at
from movies
where id = $1
"""
INSERT = """
insert into movies (title, year, runtime, genres)
values ($1, $2, $3, $4)
returning id, title, year, runtime, genres, version, created_at, updated_at
"""


class NewMovie(BaseModel):
    """What a client sends."""

    title: Annotated[str, Field(min_length=1, max_length=500)]
    year: Annotated[int, Field(ge=1888)]
    runtime: Annotated[str, Field(pattern="^[1-9][0-9]* mins$")]
    genres: Annotated[list[str], Field(min_length=1, max_length=5)]


class Movie(NewMovie):
    """What it gets."""

    id: int
    version: int
    created_at: datetime
    updated_at: datetime


class Answer(BaseModel):
    """The envelope."""

    movie: Movie


async def _leave(_: asyncpg.Connection) -> None:
    pass


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold as many connections as one process of the service does.

    asyncpg resets a connection when it comes back to the pool, which is a round trip of its own.
    A user has that unless he looks for it; target `fastapi-no-reset` shows what it costs.
    """
    reset = _leave if os.environ.get("PEER_RESET") == "off" else None
    async with asyncpg.create_pool(
        os.environ["DATABASE_URL"], min_size=25, max_size=25, reset=reset
    ) as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/v1/movies/{movie_id}")
async def get_movie(movie_id: int, request: Request) -> Answer:
    """Answer with one movie."""
    record = await request.app.state.pool.fetchrow(SELECT, movie_id)
    if record is None:
        raise HTTPException(404)
    return _answer(record)


@app.post("/v1/movies", status_code=201)
async def create_movie(new: NewMovie, request: Request, response: Response) -> Answer:
    """Create a movie and answer with it."""
    runtime = int(new.runtime.removesuffix(" mins"))
    record = await request.app.state.pool.fetchrow(INSERT, new.title, new.year, runtime, new.genres)
    response.headers["Location"] = f"/v1/movies/{record['id']}"
    return _answer(record)


def _answer(record: asyncpg.Record) -> Answer:
    return Answer(movie=Movie(**{**record, "runtime": f"{record['runtime']} mins"}))
