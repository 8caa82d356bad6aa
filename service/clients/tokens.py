"""The form of tokens: `mc_<client's id>_<secret>`.

The secret has 43 characters of base64url: 37 random ones (222 bits) and a checksum of six, so that
a token that was cut or mistyped needs no query. The database has only the SHA-256 of a token; that
is enough, as nobody can guess 222 random bits.
"""

import hashlib
import re
import secrets
from base64 import urlsafe_b64encode

from service.database import MAX_BIGINT

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
