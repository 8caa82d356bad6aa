"""The entries of a batch: what they are, and how each is validated, with its own mistakes."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from marshmallow import ValidationError

from service.database import MAX_BIGINT
from service.errors import Failure, Invalid, Malformed
from service.movies.movie import ENTITY_TAG, FIELDS, MOVIES
from service.movies.restoring import VersionInput
from service.movies.rules import MOVIE, OPTIONAL, IdentifiedMovieInput, MovieInput
from service.web.fields import JSONField, JSONObject, Values, load_fields, whole_number
from service.web.headers import TAG, Tag

MAX_MOVIES = 100
MAX_FAILURES = 500  # of the entries of a batch; otherwise a response could have 2 MB
MAX_TAG_LENGTH = 100  # a movie's tag is shorter
SLICE_S = 0.0005  # for loading movies; then other requests get a turn
Loaded = Values | Malformed | Invalid  # an entry of a batch, or its error


def _check_number(movies: list[object]) -> None:
    if not 1 <= len(movies) <= MAX_MOVIES:
        raise ValidationError(f"must be 1 to {MAX_MOVIES} movies")


class MovieBatch(JSONObject):
    """A batch; each movie is validated separately."""

    called = "a batch"
    movies = JSONField(list, "an array of movies", _check_number)


def _parse_etag(text: str) -> Tag:
    match = TAG.fullmatch(text) if len(text) <= MAX_TAG_LENGTH else None
    if not match:
        example = json.dumps(ENTITY_TAG % (7, 1))
        raise ValueError(f"must be the etag of a movie, with its quotes: {example}")
    return Tag(bool(match[1]), match[2])


ID_FIELD = whole_number(MAX_BIGINT, format="int64", description="the movie's id", examples=[7])
ETAG_FIELD = JSONField(
    str,
    "a string",
    convert=_parse_etag,
    optional=True,
    nullable=False,  # as an empty If-Match: a client has lost its tag
    pattern=f"^{TAG.pattern}$",
    maxLength=MAX_TAG_LENGTH,
    description="the one that you have; 412 if the movie has changed since",
    examples=[ENTITY_TAG % (7, 1)],
)


class MoviePutInput(IdentifiedMovieInput):
    """A movie with its external id, and the tag of the movie that it replaces."""

    read_only = tuple(name for name in MovieInput.read_only if name != "etag")
    etag = ETAG_FIELD


class MovieChangeInput(MovieInput):
    """A movie and the fields that are to be changed."""

    called = "a change"
    read_only = tuple(name for name in MovieInput.read_only if name not in ("id", "etag"))
    id, etag = ID_FIELD, ETAG_FIELD


class MovieDeletionInput(JSONObject):
    """A movie that is to be deleted."""

    called = "a deletion"
    id, etag = ID_FIELD, ETAG_FIELD


class MovieRestoreInput(VersionInput):
    """A movie, and the version that it is to have again."""

    id, etag = ID_FIELD, ETAG_FIELD


class Kind(NamedTuple):
    """What the entries of a batch are; no two may have the same id or external id."""

    schema: JSONObject
    is_create: bool = False


BATCH = MovieBatch()
CREATES = Kind(MOVIE, is_create=True)
PUTS = Kind(MoviePutInput(partial=[name for name in OPTIONAL if name != MOVIES.unique]))
CHANGES = Kind(MovieChangeInput(partial=FIELDS))
DELETIONS = Kind(MovieDeletionInput())
RESTORES = Kind(MovieRestoreInput())


async def load_batch(
    body: Values, loading: asyncio.Lock, kind: Kind = CREATES, *, is_lenient: bool
) -> list[Any]:
    """Return the values of each entry; in a lenient batch, the error of an entry that fails.

    Raises `Malformed` or `Invalid`, with the mistakes of the batch and of its entries.
    """
    errors: dict[str, Malformed | Invalid] = {}
    try:
        load_fields(BATCH, body)
    except (Malformed, Invalid) as error:
        if is_lenient or any(failure.field == "movies" for failure in error.failures):
            raise
        errors[""] = error
    loaded = await _load_entries(body["movies"], loading, kind.schema)
    if not is_lenient:
        errors |= {
            f"movies/{index}": movie
            for index, movie in enumerate(loaded)
            if not isinstance(movie, dict)
        }
        _raise_all(errors)
    if not (is_lenient and kind.is_create):  # where a repeated one gets its own 409
        _refuse_repeated(loaded)
    return loaded


async def _load_entries(
    movies: list[object], loading: asyncio.Lock, schema: JSONObject
) -> list[Loaded]:
    """Return the values of each entry, or its error; at most `MAX_FAILURES` in all.

    `loading`: the lock of all batches, which load one after the other. 100 movies at once would
    delay all other requests, and several batches would add up.
    """
    # One failure of each entry is kept, and this many more in total.
    loaded, spare = list[Loaded](), MAX_FAILURES - len(movies)
    async with loading:
        until = 0.0
        for movie in movies:
            if time.monotonic() >= until:
                await asyncio.sleep(0)
                until = time.monotonic() + SLICE_S
            try:
                loaded.append(load_fields(schema, movie, partial=schema.partial))
            except (Malformed, Invalid) as error:
                error.failures = error.failures[: 1 + spare]
                spare -= len(error.failures) - 1
                loaded.append(error.with_traceback(None))  # its frame would keep all movies
    return loaded


def _raise_all(errors: Mapping[str, Malformed | Invalid]) -> None:
    """Raise the errors as one, if there are any; `errors`: by their entry, such as movies/0."""
    failures = [
        Failure(f"{entry}/{at}".strip("/"), what)
        for entry, error in errors.items()
        for at, what in error.failures
    ]
    for entry, error in errors.items():
        if isinstance(error, Malformed):
            raise Malformed(f"{entry}: {error.mistake}" if entry else error.mistake, failures)
    if failures:
        raise Invalid(failures)


def _refuse_repeated(loaded: Sequence[Loaded]) -> None:
    found: dict[object, int] = {}
    failures = list[Failure]()
    entries = [(index, entry) for index, entry in enumerate(loaded) if isinstance(entry, dict)]
    for index, entry in entries:
        for name in ("id", "external_id"):
            value = entry.get(name)  # a number or a text: the two are never equal
            if value is not None and found.setdefault(value, index) != index:
                what = f"must not be repeated: movies/{found[value]} has it"
                failures.append(Failure(f"movies/{index}/{name}", what))
    if failures:
        raise Invalid(failures)
