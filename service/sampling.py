"""A sample of movies, to tell in some milliseconds that a filter passes more than so many.

Counting ten thousand movies takes PostgreSQL up to 0.2 s, where they are spread over all others. Of
most filters that pass more, a sample says so sooner: of runs of neighbouring ids, drawn at random,
it counts those with a match in them. If no more than `many` movies passed, they would be in no more
runs than that, and of those the sample would meet its share, or a few more (Poisson's law). So it
may fail to notice, but does not mislead, however the matches lie
(https://en.wikipedia.org/wiki/Cluster_sampling).
"""

import random
from itertools import count
from math import exp
from typing import NamedTuple

RUN = 10  # ids; neighbours are read together, so that ten cost little more than one
# Runs: the first sample, of 4 ms, knows most filters; the second looks closer at some.
SIZES = (500, 1_500)
# As many runs as too few movies would meet by this chance. Where it is less than DOUBT, the second
# sample has little hope of a proof.
PROOF = 1e-8
DOUBT = 1e-3


class Sample(NamedTuple):
    """The ids, as PostgreSQL reads an array, and how many runs with a match are proof, or doubt."""

    ids: str
    proof: int
    doubt: int


def draw(largest: int, many: int) -> list[Sample]:
    """Draw the samples of the ids up to the largest; none where `many` is too much of them all.

    The same ids every time, so that a filter is judged alike on each of its pages.
    """
    runs = largest // RUN
    if runs < max(4 * many, sum(SIZES)):
        return []
    share = many / runs
    chosen = random.Random(0).sample(range(runs), sum(SIZES))  # noqa: S311 - nothing secret
    samples = []
    for size in SIZES:
        drawn, chosen = sorted(chosen[:size]), chosen[size:]
        ids = ",".join(str(run * RUN + offset) for run in drawn for offset in range(RUN))
        proof, doubt = (_rare(size * share, chance) for chance in (PROOF, DOUBT))
        samples.append(Sample(f"{{{ids}}}", proof, doubt))
    return samples


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
