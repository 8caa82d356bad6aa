"""A client of the movie catalogue to copy; as a program, it keeps a copy of $API in copy.db."""

import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NotRequired, TypedDict
from uuid import uuid4

import requests
from requests.structures import CaseInsensitiveDict

PAUSES_S = (0.5, 1, 2, 4, 8, 10, 10)  # together longer than a restart of the service
ROUNDS = 50  # to change a movie that others change, too
MOVIES, BATCH = "/v1/movies", "/v1/movies/batch"
# The request may have been carried out, as after a 503.
LOST = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


def is_repeatable(method: str, path: str, body: Any, headers: Mapping[str, str]) -> bool:
    """Return whether a request may be sent again that may have been carried out.

    Any other one could create a movie twice, or undo what somebody else changed in between.
    """
    if method in ("GET", "HEAD", "DELETE") or (method, path) == ("PUT", BATCH):
        return True
    if method == "POST" and path in (MOVIES, BATCH):
        return "Idempotency-Key" in headers
    if path.startswith(BATCH):
        return bool(body) and all(entry.get("etag") for entry in body["movies"])
    return headers.get("If-Match", "*").strip() != "*"


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
        content = response.json() if is_json and response.content else {}  # HEAD has none
        self.status = response.status_code
        self.slug: str = content.get("type", "").partition("#")[2]
        self.errors: list[dict[str, str]] = content.get("errors", [])
        other = response.headers.get("Location", response.reason)
        super().__init__(f"{self.status} {content.get('detail', other)} {self.errors}")


class Catalogue:
    """The requests to a catalogue."""

    def __init__(self, api: str, token: str | None = None) -> None:
        self.api = api
        self.session = requests.Session()
        self.session.headers.update({"Authorization": f"Bearer {token}"} if token else {})
        self.session.auth = lambda request: request  # otherwise, requests takes that of ~/.netrc

    def send(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request; send it again if that is safe, and may help.

        Raises `Problem`, also for a redirect, or one of `LOST`. The 404 of a repeated DELETE is
        returned: the movie is gone. The 412 of a repeated change may come from the change itself.
        """
        is_read, headers = method in ("GET", "HEAD"), CaseInsensitiveDict(options.get("headers"))
        may_repeat = is_repeatable(method, path, options.get("json"), headers)
        options = {"timeout": 30, **options, "allow_redirects": False}
        pauses, was_lost = iter(PAUSES_S), False
        while True:
            pause, after = next(pauses, None), ""
            try:
                response = self.session.request(method, self.api + path, **options)
                is_gone = was_lost and method == "DELETE" and response.status_code == 404
                if is_gone or (response.ok and not response.is_redirect):
                    return response
                problem, after = Problem(response), response.headers.get("Retry-After", "")
                may_help = {503: may_repeat, 502: is_read, 504: is_read}  # perhaps of a proxy
                may_help |= {429: True, 409: after != ""}  # it was not carried out
                if pause is None or not may_help.get(problem.status):
                    raise problem
                was_lost = was_lost or problem.status == 503
            except LOST:
                if pause is None or not may_repeat:
                    raise
                was_lost = True
            wait(pause, after)

    def create(self, movie: MovieInput, key: str | None = None) -> Movie:
        """Create a movie once; with a stored key, also if this process is started again."""
        headers = {"Idempotency-Key": key or str(uuid4())}
        return self.send("POST", MOVIES, json=movie, headers=headers).json()["movie"]

    def create_many(self, movies: list[MovieInput], key: str) -> list[dict[str, Any]]:
        """Create up to 100 movies; return the status of each, with its movie or problem."""
        return self.send_batch("POST", BATCH, movies, {"Idempotency-Key": key})

    def send_batch(
        self, method: str, path: str, movies: list[Any], headers: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Send up to 100 movies, and again if that is safe; return the result of each."""
        body, lenient = {"movies": movies}, {**(headers or {}), "Prefer": "handling=lenient"}
        results: list[dict[str, Any]] = [{}] * len(movies)
        for pause in (*PAUSES_S, None):
            answer = self.send(method, path, json=body, headers=lenient)
            pairs = zip(results, answer.json()["results"], strict=True)
            results = [old if "movie" in old else new for old, new in pairs]
            # With an entry that may succeed later, the response has Retry-After.
            after = answer.headers.get("Retry-After")
            if pause is None or after is None or not is_repeatable(method, path, body, lenient):
                break
            wait(pause, after)
        return results

    def sync(
        self, rows: Iterable[MovieInput], prefix: str, max_deletions: int = 100
    ) -> dict[str, Any]:
        """Make the movies whose external ids begin with `prefix` equal to the rows of a source.

        It can be stopped at any point, and begun again. Raises `ValueError` before it deletes more
        than `max_deletions`: the source may be incomplete. Returns how many movies were created,
        kept (equal or replaced) and deleted; and with its problem, each refused row, and each movie
        whose deletion was refused.
        """
        if "".startswith(prefix):
            raise ValueError("expected a prefix, or all movies would be deleted")
        source, seen = iter(rows), set[str | None]()
        report: dict[str, Any] = {"created": 0, "kept": 0, "deleted": 0, "refused": []}

        def record(rows: list[Any], results: list[dict[str, Any]], names: dict[int, str]) -> None:
            for row, result in zip(rows, results, strict=True):
                if name := names.get(result["status"]):
                    report[name] += 1
                else:
                    report["refused"].append((row, result["problem"]))

        while batch := list(islice(source, 100)):
            for row in batch:
                name = row.get("external_id")
                if name in seen or not (name or "").startswith(prefix):
                    raise ValueError(f"expected another external_id with {prefix}, found {name}")
                seen.add(name)
            record(batch, self.send_batch("PUT", BATCH, batch), {200: "kept", 201: "created"})
        own = (each for each in self.movies() if (each["external_id"] or "").startswith(prefix))
        gone = [each for each in own if each["external_id"] not in seen]
        if len(gone) > max_deletions:
            raise ValueError(f"{len(gone)} movies are not in the source: raise max_deletions?")
        for start in range(0, len(gone), 100):
            movies = gone[start : start + 100]
            entries = [{"id": movie["id"], "etag": movie["etag"]} for movie in movies]
            results = self.send_batch("POST", f"{BATCH}/delete", entries)
            # 404: it is gone, perhaps by the same request, whose response got lost.
            record(movies, results, {200: "deleted", 404: "deleted"})
        return report

    def change(self, movie_id: int, decide: Callable[[Movie], dict[str, Any]]) -> Movie:
        """Change the fields that `decide` returns for the movie as it is now.

        After a lost response, that may be the movie with the change.
        """
        path = f"{MOVIES}/{movie_id}"
        rounds = 0
        while True:
            now = self.send("GET", path).json()["movie"]
            tag = {"If-Match": now["etag"]}  # not the header ETag, which a proxy may weaken
            try:
                return self.send("PATCH", path, json=decide(now), headers=tag).json()["movie"]
            except Problem as problem:
                rounds += 1
                if problem.status != 412 or rounds == ROUNDS:  # else somebody was faster
                    raise
                time.sleep(random.random() / 4)

    def movies(self, **filters: str | int) -> Iterator[Movie]:
        """Return all movies that match, page by page."""
        page = {"metadata": {"next_cursor": ""}}
        size = {} if filters.keys() & {"id", "external_id"} else {"page_size": 100}
        while (cursor := page["metadata"]["next_cursor"]) is not None:
            query = {**size, **filters, **({"cursor": cursor} if cursor else {})}
            page = self.send("GET", MOVIES, params=query).json()
            yield from page["movies"]


def copy_all(catalogue: Catalogue, db: sqlite3.Connection) -> str:
    """Copy all movies, and return the cursor after which the changes follow."""
    accept = {"Accept": "application/x-ndjson"}
    with catalogue.send("GET", MOVIES, headers=accept, stream=True) as response:
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
            if isinstance(error, Problem) and error.status not in (429, 502, 503, 504):
                raise
            print(error)
            time.sleep(1)
