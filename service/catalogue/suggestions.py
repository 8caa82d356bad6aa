"""Corrects a search of titles that finds nothing; docs/decisions/0017-suggest-searches.md."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod

from service.catalogue.listing import Listing
from service.catalogue.paging import Filter
from service.context import RequestContext
from service.database import transactions
from service.database.query import Expected, Query, Row
from service.database.statements import Statements
from service.errors import Unavailable

MAX_SUGGESTIONS = 3
MAX_COMBINATIONS = 1000  # of corrected words
MAX_CANDIDATES = 20  # are tried
MAX_S = 0.05  # for all statements

QUERIES: Mapping[str, Expected] = {
    "correct_words": Expected(
        {"word": str, "is_known": bool, "corrections": list[str]},
        [{"title": "a"}],
        "listing movies: a search that finds nothing",
    ),
    "keep_searches_that_find": Expected(
        {"title": str}, [{"searches": []}], "listing movies: a search that finds nothing"
    ),
    "refresh_words": Expected(
        {"words": int}, [{"run": False}], "refresh-words, import", writes=True, by_command=True
    ),
}


class Suggestions:
    """Suggests searches."""

    def __init__(self, statements: Statements, listing: Listing) -> None:
        self._fetch = partial(statements.fetch, expects_timeout=True)
        self._listing = listing

    async def find(self, wanted: Filter, context: RequestContext) -> list[str]:
        """Return up to three titles, with which the filter finds movies; none if it takes long."""
        waiting, found, end = [context], list[str](), time.monotonic() + MAX_S
        try:
            words = await self._fetch("correct_words", {"title": wanted.title}, waiting=waiting)
            searches = {"searches": combine(words)}
            rows = await self._fetch("keep_searches_that_find", searches, waiting=waiting)
            for (title,) in rows:
                corrected, left = replace(wanted, title=title), end - time.monotonic()
                if corrected == Filter(title) or (
                    left > 0 and await self._listing.has_match(corrected, context, max(left, 0.001))
                ):
                    found.append(title)
                if len(found) == MAX_SUGGESTIONS:
                    break
        except Unavailable:
            pass  # also if it takes longer than the queries allow
        return found


def combine(words: Sequence[Row]) -> list[str]:
    """Combine the words and their corrections into searches, those with the fewest changes first.

    `words`: word, whether it is known, and its corrections. An unknown word is always replaced, or
    left out if it has no corrections. Without several words, little is left of what was meant.
    """
    if sum(not is_known and not corrections for _, is_known, corrections in words) > 1:
        return []
    choices = [
        list(enumerate([word, *corrections] if is_known else corrections or [""], not is_known))
        for word, is_known, corrections in words
    ]
    while prod(map(len, choices)) > MAX_COMBINATIONS:
        max(choices, key=len).pop()
    searches = [
        (sum(rank > 0 for rank, _ in chosen), sum(rank for rank, _ in chosen), number, chosen)
        for number, chosen in enumerate(product(*choices))
    ]
    texts = [" ".join(word for _, word in chosen if word) for *_, chosen in sorted(searches)]
    original = " ".join(word for word, *_ in words)
    found = [text for text in dict.fromkeys(texts) if text not in ("", original)]
    return found[:MAX_CANDIDATES]


def refresh_words(url: str, queries: Mapping[str, Query]) -> int:
    """Collect the words of all titles anew; return their number. Raises `OperatorError`."""
    with transactions.begin(url, queries) as transaction:
        ((words,),) = transaction.run("refresh_words", {"run": True})
        transaction.commit()
    return int(words)
