"""A sample of the table, to tell in some milliseconds that a filter passes more than so many.

Counting ten thousand movies takes PostgreSQL up to 0.1 s, where they are spread over all others. Of
most filters that pass more, a sample says so sooner: of the blocks of the table, some drawn at
random (https://www.postgresql.org/docs/current/sql-select.html#SQL-FROM, TABLESAMPLE), it counts
those with a match in them. If no more than `many` movies passed, they would be in no more blocks
than that, and of those the sample would meet its share, or a few more (Poisson's law). So it may
fail to notice, but does not mislead, however the matches lie
(https://en.wikipedia.org/wiki/Cluster_sampling).
"""

from itertools import count
from math import exp
from typing import NamedTuple

from service.movies import COLUMNS

# Movies: the first sample knows the filters that pass most, the last one, of 10 ms, looks closely.
SIZES = (2_000, 10_000, 50_000)
# In a catalogue of less than so many times `many` movies, little is proven: they have few blocks.
LARGE = 80
PROOF = 1e-5  # the chance that too few movies pass for one


class Sample(NamedTuple):
    """That share of the blocks, and how many with a match are proof."""

    share: float
    proof: int

    @property
    def around(self) -> tuple[str, str]:
        """What goes around list_movies, to count what it finds, and the blocks with that.

        For its statement, `movies` are those in the sample, and their ids the blocks they are in.
        The same blocks every time, so that a filter is judged alike on each numbered page.
        """
        return (
            f"""with movies as (
  select (ctid::text::point)[0]::bigint as {", ".join(COLUMNS)}, search
  from movies tablesample system ({100 * self.share:f}) repeatable (0)
)
select count(*), count(distinct f.id) from (
""",
            "\n) as f",
        )


def samples(movies: int, many: int) -> list[Sample]:
    """The samples of a catalogue of so many movies; none where `many` is too much of them all."""
    if movies < LARGE * many:
        return []
    shares = [min(1.0, size / movies) for size in SIZES]
    return [Sample(share, _rare(many * share, PROOF)) for share in shares]


def _rare(expected: float, chance: float) -> int:
    """The least number that is as rare as this, or rarer, where so many are expected."""
    probability = exp(-expected)
    more = 1 - probability
    for number in count(1):
        if more <= chance:
            return number
        probability *= expected / number
        more -= probability
    raise AssertionError
