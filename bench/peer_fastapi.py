"""The peer: FastAPI, pydantic and asyncpg, written as in their manuals.

The peer has the same paths and fields, in compact JSON. It has no request ids, access log, strict
reading of bodies, timeouts, retries or common error format.
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


class MovieInput(BaseModel):
    """The fields that a client sends."""

    title: Annotated[str, Field(min_length=1, max_length=500)]
    year: Annotated[int, Field(ge=1888)]
    runtime: Annotated[str, Field(pattern="^[1-9][0-9]* mins$")]
    genres: Annotated[list[str], Field(min_length=1, max_length=5)]


class Movie(MovieInput):
    """The fields of a response."""

    id: int
    version: int
    created_at: datetime
    updated_at: datetime


class MovieResponse(BaseModel):
    """The body of a response."""

    movie: Movie


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open as many connections as one process of the service."""
    url = os.environ["DATABASE_URL"]
    async with asyncpg.create_pool(url, min_size=10, max_size=10) as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/v1/movies/{movie_id}")
async def get_movie(movie_id: int, request: Request) -> MovieResponse:
    """Respond with one movie."""
    record = await request.app.state.pool.fetchrow(SELECT, movie_id)
    if record is None:
        raise HTTPException(404)
    return _make_response(record)


@app.post("/v1/movies", status_code=201)
async def create_movie(new: MovieInput, request: Request, response: Response) -> MovieResponse:
    """Create a movie and respond with it."""
    runtime = int(new.runtime.removesuffix(" mins"))
    record = await request.app.state.pool.fetchrow(INSERT, new.title, new.year, runtime, new.genres)
    response.headers["Location"] = f"/v1/movies/{record['id']}"
    return _make_response(record)


def _make_response(record: asyncpg.Record) -> MovieResponse:
    return MovieResponse(movie=Movie(**{**record, "runtime": f"{record['runtime']} mins"}))
