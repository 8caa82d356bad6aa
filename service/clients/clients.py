"""Finds the client that a token belongs to; lookups at the same time share a statement.

A process caches a client for `KNOWN_S` from the start of its lookup, so a revocation takes effect
within that time in every process. Wrong tokens are not remembered: they share statements, too.
"""

import hashlib
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from hmac import compare_digest
from typing import NamedTuple, get_type_hints

from cachetools import LRUCache

from service.database import MAX_BIGINT
from service.database.caller import NOBODY, Caller
from service.database.query import Expected
from service.database.sharing import Rows, SharedStatements, join_ids, list_callers
from service.database.statements import Statements
from service.errors import (
    CatalogueError,
    Contended,
    Refusal,
    StatementFailed,
    Unauthorized,
    Unavailable,
)
from service.web.route import Scope

# A token is `mc_<client's id>_<secret>`. The secret has 37 random characters of base64url (222
# bits) and a checksum of six, so that a token that was cut or mistyped needs no query. The database
# has only its SHA-256: nobody can guess 222 random bits.
PATTERN = re.compile("mc_([1-9][0-9]{0,18})_[A-Za-z0-9_-]{43}")
CHECKSUM_CHARACTERS = 6


def make_token(client_id: int) -> str:
    """Make a new token of a client."""
    unchecked = f"mc_{client_id}_{secrets.token_urlsafe(32)[:37]}"
    return unchecked + _sum(unchecked)


def parse_token(token: str) -> int | None:
    """Return the client's id in a token, None if the text is no token."""
    match = PATTERN.fullmatch(token)
    if not match or _sum(token[:-CHECKSUM_CHARACTERS]) != token[-CHECKSUM_CHARACTERS:]:
        return None
    client_id = int(match[1])
    return client_id if client_id <= MAX_BIGINT else None


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hex, as in the table `clients`."""
    return hashlib.sha256(token.encode()).hexdigest()


def _sum(unchecked: str) -> str:
    """Return the first characters of the text's SHA-256 in base64url: docs/dbas.md has the SQL."""
    digest = hashlib.sha256(unchecked.encode()).digest()
    return urlsafe_b64encode(digest).decode()[:CHECKSUM_CHARACTERS]


class StoredClient(NamedTuple):
    """A row of `get_clients`; times in seconds since 1970.

    The two columns of the previous token are null if there is none.
    """

    id: int
    token_hash: str
    previous_token_hash: str
    previous_expires_at: float
    scopes: list[str]
    expires_at: float
    is_revoked: bool
    was_used_today: bool


QUERIES: Mapping[str, Expected] = {
    "get_clients": Expected(
        get_type_hints(StoredClient), [{"ids": "{}"}], "a request with a token"
    ),
    "mark_clients_used": Expected(
        {"id": int},
        [{"ids": "{}"}],
        "the first request of a client on a day",
        writes=True,
        own_tables=["clients"],
    ),
}

KNOWN_S = 30.0
MAX_KNOWN = 10_000  # tokens; about 5 MB
MARK_RETRY_S = 3600.0  # after a failure: a standby refuses each mark, and each failure is logged

MALFORMED = (
    "the token is malformed; expected mc_, digits, _ and 43 characters, the last 6 a checksum"
)
UNKNOWN = "the token is not known here"
EXPIRED = "the token has expired"
REVOKED = "the token was revoked"
ROTATED = "the token was replaced by another one"


class Client(NamedTuple):
    """A client whose token was verified."""

    id: int
    scope: Scope
    expires_at: float  # in seconds since 1970
    known_until: float  # by the clock of `Clients`


class Clients:
    """The clients of the table `clients`; `clock` returns seconds."""

    def __init__(self, statements: Statements, clock: Callable[[], float] = time.monotonic) -> None:
        self._statements = statements
        self._fetch = statements.fetch
        # Known clients use the second queue: a flood of unknown tokens can fill the first queue.
        self._lookups, self._renewals = (
            SharedStatements(
                self._get,
                is_repeatable=True,
                rows_metric=statements.metrics.shared_statement_rows.labels("get_clients"),
            )
            for _ in range(2)
        )
        self._clock = clock
        self._known: LRUCache[str, Client] = LRUCache(MAX_KNOWN)
        self._marks = SharedStatements(self._mark_used)
        self._mark_after = 0.0

    def get_known(self, token: str) -> Client | None:
        """Return the client of this token from the cache; None: use `look_up`."""
        try:
            client: Client = self._known[token]
        except KeyError:
            return None
        is_known = client.known_until > self._clock() and client.expires_at > time.time()
        return client if is_known else None

    async def look_up(self, token: str, caller: Caller = NOBODY) -> Client:
        """Return the client with this token; `Unauthorized`, `Unavailable` if the lookup fails."""
        client_id = parse_token(token)
        if client_id is None:
            raise Unauthorized(MALFORMED, is_token_sent=True)
        known_until = self._clock() + KNOWN_S  # from before the lookup: its answer may be as old
        lookups = self._renewals if token in self._known else self._lookups
        stored = await lookups.submit(client_id, caller=caller)
        try:
            client = _verify(stored, token, known_until)
        except Unauthorized:
            self._known.pop(token, None)
            raise
        self._known[token] = client
        if stored and not stored.was_used_today and self._clock() >= self._mark_after:
            with suppress(Unavailable):  # too many wait: the token is valid all the same
                self._marks.submit(client_id)  # in the background
        return client

    async def _get(self, rows: Rows[StoredClient]) -> dict[int, StoredClient]:
        ids = {row.key for row in rows}
        try:
            fetched = await self._fetch(
                "get_clients", {"ids": join_ids(ids)}, callers=list_callers(rows)
            )
            self._statements.require_sent("get_clients", [row[0] for row in fetched], ids)
        except (Contended, StatementFailed) as error:
            # All get a 503: no token caused this, and a 401 would say that a token is wrong.
            refusal = error.refusal if isinstance(error, Contended) else Refusal.STATEMENT_LOST
            raise Unavailable(str(error), refusal) from error
        return {row[0]: StoredClient._make(row) for row in fetched}

    async def _mark_used(self, rows: Rows[None]) -> dict[int, None]:
        """Store the day of use."""
        try:
            await self._fetch("mark_clients_used", {"ids": join_ids({row.key for row in rows})})
        except CatalogueError:  # `Statements` has logged it
            self._mark_after = self._clock() + MARK_RETRY_S
        return {}


def _verify(stored: StoredClient | None, token: str, known_until: float) -> Client:
    """Return the client if the token is valid for it; otherwise raise `Unauthorized`."""
    token_hash = hash_token(token)
    if stored and compare_digest(token_hash, stored.token_hash):
        expires_at = stored.expires_at
    elif not stored or not compare_digest(token_hash, stored.previous_token_hash or ""):
        raise Unauthorized(UNKNOWN, is_token_sent=True)
    elif stored.previous_expires_at <= time.time():
        raise Unauthorized(ROTATED, is_token_sent=True)
    else:
        expires_at = min(stored.expires_at, stored.previous_expires_at)
    if stored.is_revoked:
        raise Unauthorized(REVOKED, is_token_sent=True)
    if expires_at <= time.time():
        raise Unauthorized(EXPIRED, is_token_sent=True)
    # Ignores scopes that only a later release knows.
    scope = max(scope for scope in Scope if not scope or scope.name.lower() in stored.scopes)
    return Client(stored.id, scope, expires_at, known_until)
