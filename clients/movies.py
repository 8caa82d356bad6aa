"""A client of the movie catalogue to copy; as a program, it keeps a copy of $API in copy.db."""

import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NotRequired, TypedDict
from uuid import uuid4

import requests

PAUSES_S = (0.5, 1, 2, 4, 8, 10, 10)  # together longer than a restart of the service
REPEATED = {409, 429, 503}  # nothing is wrong with the request: try later
TAKEN = "external-id-taken"  # but this 409 stays
LOST = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


def wait(pause: float, after: str) -> None:
    """Wait as long as Retry-After says, but at least `pause` and at most a minute."""
    least = min(int(after), 60) if after.isdigit() else 0
    time.sleep(max(pause, least) + random.random() / 4)  # other clients wait as long


class MovieInput(TypedDict):
    """The fields that a client sends."""

    title: str
    year: int
    runtime: str  # such as "107 mins"
    genres: list[str]
    external_id: NotRequired[str | None]  # in the system that the movie comes from


class Movie(MovieInput):
    """A movie of the catalogue; later releases may add fields."""

    id: int
    version: int
    created_at: str
    updated_at: str
    etag: str


class Problem(Exception):
    """The service refused a request; `errors` has each mistake with its place."""

    def __init__(self, response: requests.Response) -> None:
        is_json = "json" in response.headers.get("Content-Type", "")  # a proxy may send HTML
        content = response.json() if is_json else {}
        self.status = response.status_code
        self.slug: str = content.get("type", "").partition("#")[2]
        self.errors: list[dict[str, str]] = content.get("errors", [])
        super().__init__(f"{self.status} {content.get('detail', response.reason)} {self.errors}")


class Catalogue:
    """The requests to a catalogue."""

    def __init__(self, api: str, token: str | None = None) -> None:
        self.api = api
        self.session = requests.Session()
        self.session.headers.update({"Authorization": f"Bearer {token}"} if token else {})

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request; send it again after a lost connection, and when Retry-After says so."""
        pauses = iter(PAUSES_S)
        while True:
            pause, after = next(pauses, None), ""
            try:
                response = self.session.request(method, self.api + path, timeout=30, **options)
                if response.ok:
                    return response
                problem = Problem(response)
                if problem.slug == TAKEN or problem.status not in REPEATED or pause is None:
                    raise problem
                after = response.headers.get("Retry-After", "")
            except LOST:
                if pause is None:
                    raise
            wait(pause, after)

    def create(self, movie: MovieInput, key: str | None = None) -> Movie:
        """Create a movie once; with a stored key, also if this process is started again."""
        headers = {"Idempotency-Key": key or str(uuid4())}
        return self.send("POST", "/v1/movies", json=movie, headers=headers).json()["movie"]

    def create_many(self, movies: list[MovieInput], key: str) -> list[dict[str, Any]]:
        """Create up to 100 movies; return the status of each, with its movie or problem."""
        return self.send_batch("POST", "/v1/movies/batch", movies, {"Idempotency-Key": key})

    def send_batch(
        self, method: str, path: str, movies: list[Any], headers: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Send up to 100 movies that may be sent again; return the result of each."""
        body, lenient = {"movies": movies}, {**(headers or {}), "Prefer": "handling=lenient"}
        for pause in (*PAUSES_S, None):
            answer = self.send(method, path, json=body, headers=lenient)
            results = answer.json()["results"]
            # With an entry that may succeed later, the response has Retry-After.
            if pause is None or "Retry-After" not in answer.headers:
                break
            wait(pause, answer.headers["Retry-After"])
        return results

    def sync(
        self, rows: Iterable[MovieInput], prefix: str, max_deletions: int = 100
    ) -> dict[str, Any]:
        """Make the movies whose external ids begin with `prefix` equal to the rows of a source.

        It can be stopped at any point, and begun again. Raises `ValueError` before it deletes more
        than `max_deletions`: the source may be incomplete. Returns how many movies were created,
        kept (equal or replaced) and deleted, and each refused row with its problem.
        """
        source, seen = iter(rows), set[str | None]()
        report: dict[str, Any] = {"created": 0, "kept": 0, "deleted": 0, "refused": []}
        while batch := list(islice(source, 100)):
            for row in batch:
                name = row.get("external_id")
                if name in seen or not (name or "").startswith(prefix):
                    raise ValueError(f"expected another external_id with {prefix}, found {name}")
                seen.add(name)
            results = self.send_batch("PUT", "/v1/movies/batch", batch)
            for row, result in zip(batch, results, strict=True):
                if "problem" in result:
                    report["refused"].append((row, result["problem"]))
                else:
                    report["created" if result["status"] == 201 else "kept"] += 1
        own = (each for each in self.movies() if (each["external_id"] or "").startswith(prefix))
        gone = [
            {"id": each["id"], "etag": each["etag"]}
            for each in own
            if each["external_id"] not in seen
        ]
        if len(gone) > max_deletions:
            raise ValueError(f"{len(gone)} movies are not in the source: raise max_deletions?")
        for start in range(0, len(gone), 100):
            deletions = gone[start : start + 100]
            results = self.send_batch("POST", "/v1/movies/batch/delete", deletions)
            report["deleted"] += sum("movie" in result for result in results)
        return report

    def change(self, movie_id: int, decide: Callable[[Movie], dict[str, Any]]) -> Movie:
        """Change the fields that `decide` returns for the movie as it is now."""
        path = f"/v1/movies/{movie_id}"
        while True:
            seen = self.send("GET", path)
            tag, fields = seen.headers["ETag"], decide(seen.json()["movie"])
            try:
                answer = self.send("PATCH", path, json=fields, headers={"If-Match": tag})
                return answer.json()["movie"]
            except Problem as problem:
                if problem.status != 412:  # else somebody was faster: decide again
                    raise
                time.sleep(random.random() / 4)

    def movies(self, **filters: str | int) -> Iterator[Movie]:
        """Return all movies that match, page by page; not for `id`, whose list has one page."""
        page = {"metadata": {"next_cursor": ""}}
        while (cursor := page["metadata"]["next_cursor"]) is not None:
            query = {"page_size": 100, **filters, **({"cursor": cursor} if cursor else {})}
            page = self.send("GET", "/v1/movies", params=query).json()
            yield from page["movies"]


def copy_all(catalogue: Catalogue, db: sqlite3.Connection) -> str:
    """Copy all movies, and return the cursor after which the changes follow."""
    accept = {"Accept": "application/x-ndjson"}
    with catalogue.send("GET", "/v1/movies", headers=accept, stream=True) as response:
        db.execute("delete from movies")
        rows = ((json.loads(line)["id"], line.decode()) for line in response.iter_lines())
        copied = db.executemany("insert into movies values (?, ?)", rows).rowcount
        if copied != int(response.headers["Total-Records"]):
            raise requests.ConnectionError(f"the list broke off after {copied} movies")
        return response.headers["Changes-Cursor"]


def follow(catalogue: Catalogue, db: sqlite3.Connection, cursor: str) -> str:
    """Apply the next changes, wait up to 20 s if there are none, and return the next cursor."""
    try:
        answer = catalogue.send("GET", "/v1/changes", params={"after": cursor, "wait": 20}).json()
    except Problem as problem:
        if problem.status != 410:  # else the feed no longer has all changes after the cursor
            raise
        return copy_all(catalogue, db)
    for change in answer["changes"]:
        db.execute("delete from movies where id = ?", [change["id"]])
        if movie := change.get("movie"):
            db.execute("insert into movies values (?, ?)", [movie["id"], json.dumps(movie)])
    return answer["metadata"]["next_cursor"]


if __name__ == "__main__":
    source = Catalogue(os.environ.get("API", "http://127.0.0.1:8000"), os.environ.get("TOKEN"))
    copy = sqlite3.connect("copy.db")
    copy.execute("create table if not exists movies (id integer primary key, movie text)")
    copy.execute("create table if not exists feed (id integer primary key, cursor text)")
    while True:
        try:
            with copy:  # one transaction for the movies and their cursor; an error undoes it
                known = copy.execute("select cursor from feed").fetchone()
                after = follow(source, copy, *known) if known else copy_all(source, copy)
                copy.execute("replace into feed values (1, ?)", [after])
        except (requests.RequestException, Problem) as error:  # later, it may succeed
            if isinstance(error, Problem) and error.status not in REPEATED:
                raise
            print(error)
            time.sleep(1)
