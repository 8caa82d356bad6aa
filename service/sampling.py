"""A sample of movies, to tell in some milliseconds that a filter passes more than so many.

Counting ten thousand movies takes PostgreSQL up to 0.2 s, where they are spread over all others. Of
most filters that pass more, a sample says so sooner: of runs of neighbouring ids, drawn at random,
it counts those with a match in them. If no more than `many` movies passed, they would be in no more
runs than that, and of those the sample would meet its share, or a few more: six standard deviations
more are one sample in millions. So a sample may fail to notice, but does not mislead, however the
matches lie (https://en.wikipedia.org/wiki/Cluster_sampling).
"""

import random
from typing import NamedTuple

RUNS = 800
RUN = 10  # ids; neighbours are read together, so that ten cost little more than one
SURE = 6  # standard deviations


class Sample(NamedTuple):
    """The ids, as PostgreSQL reads an array, and how many runs with a match are proof."""

    ids: str
    proof: float


def draw(largest: int, many: int) -> Sample | None:
    """Draw a sample of the ids up to the largest; None where `many` is too much of them all.

    The same ids every time, so that a filter is judged alike on each of its pages.
    """
    runs = largest // RUN
    if runs < max(2 * many, RUNS):
        return None
    chosen = sorted(random.Random(0).sample(range(runs), RUNS))  # noqa: S311 - nothing secret
    share = many / runs
    expected = RUNS * share
    return Sample(
        ids=f"{{{','.join(str(run * RUN + offset) for run in chosen for offset in range(RUN))}}}",
        proof=expected + SURE * (expected * (1 - share)) ** 0.5,
    )
