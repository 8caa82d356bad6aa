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

COLUMNS = "id, title, year, runtime, genres, version, created_at, updated_at"
SELECT = f"select {COLUMNS} from movies where id = $1"
INSERT = f"""
insert into movies (title, year, runtime, genres)
values ($1, $2, $3, $4)
returning {COLUMNS}
"""
COUNT = "select count(*) from (select from movies where {conditions} limit 10001) as m"
LIST = f"select {COLUMNS} from movies where {{conditions}} order by {{order}} limit {{size}}"
ORDERS = {"id": "id", "-year": "year desc, id desc"}
PAGE_SIZE = 20


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


class Metadata(BaseModel):
    """What a page says of its list."""

    page_size: int
    total_records: int


class PageResponse(BaseModel):
    """The body of a page."""

    movies: list[Movie]
    metadata: Metadata


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
    return MovieResponse(movie=_make_movie(record))


@app.post("/v1/movies", status_code=201)
async def create_movie(new: MovieInput, request: Request, response: Response) -> MovieResponse:
    """Create a movie and respond with it."""
    runtime = int(new.runtime.removesuffix(" mins"))
    record = await request.app.state.pool.fetchrow(INSERT, new.title, new.year, runtime, new.genres)
    response.headers["Location"] = f"/v1/movies/{record['id']}"
    return MovieResponse(movie=_make_movie(record))


@app.get("/v1/movies")
async def list_movies(
    request: Request, genres: str = "", title: str = "", year: str = "", sort: str = "id"
) -> PageResponse:
    """Respond with the first page: send only the conditions that were asked for."""
    conditions: list[str] = ["true"]
    values: list[object] = []

    def add(condition: str, value: object) -> None:
        values.append(value)
        conditions.append(condition.format(len(values)))

    if genres:
        add("genres @> ${}", genres.split(","))
    if title:
        add("to_tsvector('simple', title) @@ plainto_tsquery('simple', ${})", title)
    if year:
        low, _, high = year.partition("..")
        add("year >= ${}", int(low))
        add("year <= ${}", int(high or low))
    where = " and ".join(conditions)
    page = LIST.format(conditions=where, order=ORDERS[sort], size=PAGE_SIZE)
    async with request.app.state.pool.acquire() as connection:
        total = await connection.fetchval(COUNT.format(conditions=where), *values)
        records = await connection.fetch(page, *values)
    movies = [_make_movie(record) for record in records]
    return PageResponse(movies=movies, metadata=Metadata(page_size=PAGE_SIZE, total_records=total))


def _make_movie(record: asyncpg.Record) -> Movie:
    return Movie(**{**record, "runtime": f"{record['runtime']} mins"})
