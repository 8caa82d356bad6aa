"""A client of the movie catalogue to copy; as a program, it keeps a copy of $API in copy.db."""

import json
import os
import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from datetime import datetime
from itertools import islice
from typing import Any, NotRequired, TypedDict
from uuid import uuid4

import requests
from requests.structures import CaseInsensitiveDict

PAUSES_S = (0.5, 1, 2, 4, 8, 10, 10)  # together longer than a restart of the service
ROUNDS = 50  # to change a movie that others change, too
MOVIES, BATCH = "/v1/movies", "/v1/movies/batch"
DELETE, RESTORE = ("POST", f"{BATCH}/delete"), ("POST", f"{BATCH}/restore")
SYNC = {"created": ("POST", BATCH), "changed": ("PUT", BATCH), "deleted": DELETE}
UNDO = {"restored": RESTORE, "changed": RESTORE, "deleted": DELETE}
NO_TAG = '"none"'  # of no movie: one that has the sent fields is `equal`, any other a 412
NDJSON = {"Accept": "application/x-ndjson"}
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


class Memory(dict[str, Any]):
    """What `sync` has sent, in an SQLite file, which is whole after a crash.

    By external id: the tag, the row, and the row that is being sent. One for each catalogue.
    """

    def __init__(self, path: str) -> None:
        self.db = sqlite3.connect(path)
        self.db.execute("create table if not exists sent (name text primary key, entry text)")
        rows = self.db.execute("select name, entry from sent")
        super().__init__((name, json.loads(entry)) for name, entry in rows)

    def update(self, entries: Mapping[str, Any]) -> None:  # type: ignore[override] # all it needs
        """Store the entries in one transaction."""
        super().update(entries)
        rows = [(name, json.dumps(entry)) for name, entry in entries.items()]
        with self.db:
            self.db.executemany("replace into sent values (?, ?)", rows)


def plan_sync(row: Any, movie: Movie | None, tag: str | None, *sent: Any) -> str:
    """Return what to do for a row, or for None: the source has none.

    The movie is still the program's own if it has this tag, or is as one of the `sent` rows; one
    that is gone is, if None was sent.
    """
    if movie is None:
        return "equal" if row is None else "created" if None in sent else "conflict"
    if row and movie == {**movie, **row}:
        return "equal"
    is_own = movie["etag"] == tag or any(each and movie == {**movie, **each} for each in sent)
    return "conflict" if not is_own else "changed" if row else "deleted"


def plan_undo(own: list[Any], movie: Movie | None) -> tuple[str, dict[str, Any]]:
    """Return what undoes a client's changes of a movie, and what to send."""
    own.sort(key=lambda change: (change["version"], change["kind"] == "deleted"))
    before = [change["version"] - (change["kind"] != "deleted") for change in own]
    entry = {"id": own[0]["id"], "etag": own[-1].get("etag", NO_TAG)}
    if before[1:] != [change["version"] for change in own[:-1]]:
        return "conflict", entry  # others came in between
    if own[0]["kind"] == "created":
        return "deleted", entry
    if movie is None and own[-1]["kind"] == "deleted":
        del entry["etag"]  # and without a version, a movie that is there by now stays as it is
        return "restored", entry | ({"version": before[0]} if len(own) > 1 else {})
    return "changed", {**entry, "version": before[0]}  # `equal` if it has been undone before


def read_stream(response: requests.Response) -> Iterator[Any]:
    """Return the movies of a stream; raises if it does not have all."""
    number = 0
    for line in response.iter_lines():
        number += 1
        yield json.loads(line)
    if number != int(response.headers.get("Total-Records", -1)):
        raise requests.ConnectionError(f"the list broke off after {number} movies")


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
        returned: the movie is gone.
        """
        is_read, headers = method in ("GET", "HEAD"), CaseInsensitiveDict(options.get("headers"))
        may_repeat = is_repeatable(method, path, options.get("json"), headers)
        options = {"timeout": 30, **options, "allow_redirects": False}
        pauses, was_lost = iter(PAUSES_S), False
        while True:
            pause, after = next(pauses, None), ""
            try:
                response = self.session.request(method, self.api + path, **options)
                is_empty = not options.get("stream") and not response.content
                is_list = "ndjson" in response.headers.get("Content-Type", "")  # may have no movies
                if is_empty and not is_list and method != "HEAD":
                    raise requests.ConnectionError("the response broke off within its head")
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

    def carry_out(
        self, todo: dict[str, dict[Any, Any]], now: dict[Any, Any], to: dict[str, Any], keep: Any
    ) -> dict[str, Any]:
        """Send entries by what they do, 100 at a time, and `keep` new tags; without it, count."""
        report: dict[str, Any] = {
            "conflicts": [],
            "refused": [],
            "equal": 0,
            **dict.fromkeys(to, 0),
        }
        report["conflicts"] += [(each, now.get(n)) for n, each in todo["conflict"].items()]
        for outcome in ("equal", *to):
            method, path = to.get(outcome, ("", ""))
            entries = iter(todo[outcome].items())
            if not (keep and path):
                report[outcome] += len(todo[outcome])
            while keep and path and (batch := dict(islice(entries, 100))):
                key, tags = {"Idempotency-Key": str(uuid4())}, {}
                results = self.send_batch(method, path, [*batch.values()], key)
                for name, result in zip(batch, results, strict=True):
                    status = result["status"]
                    # 404: it is gone, perhaps by the same request, whose response got lost.
                    if status < 300 or (status == 404 and outcome == "deleted"):
                        report[result.get("outcome", outcome)] += 1
                        tags[name] = result.get("movie", {}).get("etag")
                    elif (status, outcome) == (409, "created"):  # perhaps with the same fields
                        todo["changed"][name] = {**batch[name], "etag": NO_TAG}
                    elif status in (409, 412):
                        report["conflicts"].append((batch[name], now.get(name)))
                    else:
                        report["refused"].append((batch[name], result["problem"]))
                keep(tags)
        return report

    def sync(  # noqa: PLR0913 - callers name them
        self,
        rows: Iterable[MovieInput],
        prefix: str,
        memory: str | MutableMapping[str, Any] | None = None,
        *,
        max_deletions: int = 100,
        overwrite: bool = False,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Bring the changes of a source to its movies, whose external ids begin with `prefix`.

        `memory`, a file or a mapping, keeps what was sent. Only rows that have changed since are
        sent. A movie that others have changed or deleted since is a conflict, as is one that
        differs and was never sent. With `overwrite`, the rows win. A `dry_run` writes nothing.

        It can be stopped at any point, and begun again. Raises `ValueError`, and writes nothing,
        if it would delete more than `max_deletions`: the source may be incomplete. The report has
        numbers, `refused` entries with problems, and `conflicts` with the movies as they are now.
        """
        if "".startswith(prefix):
            raise ValueError("expected a prefix, or all movies would be deleted")
        sent: Any = Memory(memory) if isinstance(memory, str) else {} if memory is None else memory
        wanted = dict[str, Any]()
        for row in rows:
            name = row.get("external_id") or ""
            if name in wanted or not name.startswith(prefix):
                raise ValueError(f"expected external ids with {prefix}, once each; found {name!r}")
            wanted[name] = json.loads(json.dumps(row))  # the caller may change the row
        rest = {n: row for n, row in wanted.items() if overwrite or sent.get(n, [0])[1:] != [row]}
        mine = {n for n in sent if n.startswith(prefix) and sent[n][1:] != [None]}
        now = dict[str, Any]()
        if overwrite or rest or mine - wanted.keys():
            query = {"external_id_prefix": prefix}
            stream = read_stream(self.send("GET", MOVIES, params=query, headers=NDJSON))
            now = {movie["external_id"]: movie for movie in stream}
        rest |= dict.fromkeys((mine | now.keys()) - wanted.keys())
        todo, notes = defaultdict[str, dict[Any, Any]](dict), dict[str, Any]()
        for name, row in rest.items():
            movie = now.get(name)
            tag = movie and movie["etag"]
            known = [tag, None] if overwrite else sent.get(name, [None, None])
            outcome = plan_sync(row, movie, *known)
            more = {"etag": tag} if movie and not (row and overwrite) else {}
            todo[outcome][name] = {**(row or {"id": movie and movie["id"]}), **more}
            if outcome != "conflict":
                notes[name] = [tag, row] if outcome == "equal" else [tag, movie and row, row]
        if (gone := len(todo["deleted"])) > max_deletions:
            raise ValueError(f"{gone} movies are not in the source: raise max_deletions?")
        if not dry_run:  # before anything is sent: after a crash, the next run knows what may be
            sent.update(notes)

        def keep(tags: dict[str, Any]) -> None:
            sent.update({name: [tag, rest[name]] for name, tag in tags.items()})

        report = self.carry_out(todo, now, SYNC, None if dry_run else keep)
        report["equal"] += len(wanted.keys() - rest.keys())
        return report

    def undo(
        self, client: int | str, since: datetime, until: datetime, *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Undo what a client (id or name; in SQL: the login) did between two times, by the feed.

        What others have changed in between or since is a conflict. After a lost response, undo it
        again.
        """
        found, now = defaultdict[int, list[Any]](list), dict[Any, Any]()
        page: dict[str, Any] = {"changes": [{}], "metadata": {"next_cursor": None}}
        while page["changes"] or datetime.fromisoformat(page["metadata"]["as_of"]) < until:
            time.sleep(0 if page["changes"] else 1)  # a long transaction holds changes back
            query = {"limit": 1000, "after": page["metadata"]["next_cursor"]}
            page = self.send("GET", "/v1/changes", params=query).json()
            for change in page["changes"]:
                is_own = client in change.get("client", {}).values()
                if is_own and since <= datetime.fromisoformat(change["changed_at"]) <= until:
                    found[change["id"]].append(change)
                now[change["id"]] = change.get("movie")
        if not found:
            raise ValueError(f"found no changes of {client}: does your token show clients?")
        todo = defaultdict[str, dict[Any, Any]](dict)
        for n, own in found.items():
            outcome, entry = plan_undo(own, now[n])
            is_last = (now[n] or {}).get("etag") == own[-1].get("etag")
            todo["conflict" if dry_run and not is_last else outcome][n] = entry
        return self.carry_out(todo, now, UNDO, None if dry_run else len)

    def history(self, movie_id: int) -> Iterator[dict[str, Any]]:
        """Return all changes of a movie, the newest first, also of one that is deleted."""
        return self.walk(f"{MOVIES}/{movie_id}/changes", "changes", {"limit": 100})

    def change(self, movie_id: int, decide: Callable[[Movie], dict[str, Any]]) -> Movie:
        """Change the fields that `decide` returns for the movie as it is now."""
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
        size = {} if filters.keys() & {"id", "external_id"} else {"page_size": 100}
        return self.walk(MOVIES, "movies", {**size, **filters})

    def walk(self, path: str, name: str, query: dict[str, Any]) -> Iterator[Any]:
        """Return what all pages have under `name`."""
        page = {"metadata": {"next_cursor": ""}}
        while (cursor := page["metadata"]["next_cursor"]) is not None:
            page = self.send("GET", path, params={**query, "cursor": cursor or None}).json()
            yield from page[name]


def copy_all(catalogue: Catalogue, db: sqlite3.Connection) -> str:
    """Copy all movies, and return the cursor after which the changes follow."""
    with catalogue.send("GET", MOVIES, headers=NDJSON, stream=True) as response:
        db.execute("delete from movies")
        rows = ((movie["id"], json.dumps(movie)) for movie in read_stream(response))
        db.executemany("insert into movies values (?, ?)", rows)
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
