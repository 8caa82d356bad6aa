"""Tests which replicas may serve a read, case by case; `test_replicas.py` has the real servers."""

from math import inf
from typing import Any

import pytest

from service.database.freshness import (
    Answer,
    Progress,
    Sample,
    State,
    advance,
    may_serve,
    measure_age,
)

PRIMARY, PROMOTED = ("db", "1"), ("db", "2")
OLD, NEW = Sample(10.0, 100), Sample(11.0, 200)
SAMPLES = [OLD, NEW]
MAX_LAG_S = 1.0
FOLLOWING = Progress(PRIMARY, 0, NEW, horizon=50)
STATE = State(
    FOLLOWING,
    answers=True,
    primary=PRIMARY,
    newest=NEW,
    primary_answers=True,
    primary_is_away=False,
)
AWAY: dict[str, Any] = {"primary_answers": False, "primary_is_away": True}
BEHIND: dict[str, Any] = {"progress": FOLLOWING._replace(caught=OLD)}


@pytest.mark.parametrize(
    ("changed", "position", "now", "expected"),
    [
        # Its age: that of the newest sample that it has replayed.
        ({}, 0, 11.9, True),
        ({}, 0, 12.1, False),
        (BEHIND, 0, 10.9, True),
        (BEHIND, 0, 11.9, False),
        ({"progress": FOLLOWING._replace(caught=None)}, 0, 11.0, False),
        ({"progress": Progress()}, 0, 11.0, False),
        # A position: below its horizon.
        ({}, 49, 11.9, True),
        ({}, 50, 11.9, False),
        ({}, 49, 12.1, False),
        # A read failed there: not before the next answer.
        ({"progress": FOLLOWING._replace(is_left_out=True)}, 0, 11.0, False),
        # Its connection broke: it may be in an earlier state.
        ({"answers": False}, 0, 11.0, False),
        (AWAY | {"answers": False}, 0, 11.0, False),
        # Another server was promoted since its answer.
        ({"primary": PROMOTED}, 0, 11.0, False),
        # Without the primary, its last sample is enough, but not for a position.
        (AWAY, 0, 99.0, True),
        (AWAY | BEHIND, 0, 99.0, False),
        (AWAY | BEHIND, 0, 10.9, True),
        (AWAY, 49, 11.0, False),
        # One failed question is not enough: the primary may be full.
        ({"primary_answers": False}, 0, 11.9, True),
        ({"primary_answers": False}, 0, 12.1, False),
        ({"primary_answers": False}, 49, 11.0, False),
    ],
)
def test_a_replica_may_serve(
    changed: dict[str, Any], position: int, now: float, *, expected: bool
) -> None:
    """A replica serves reads that it can answer as the primary would have, `MAX_LAG_S` ago."""
    assert may_serve(STATE._replace(**changed), position, now, MAX_LAG_S) is expected


@pytest.mark.parametrize(
    ("before", "place", "min_lsn", "caught"),
    [
        # The newest sample that it has replayed counts.
        (FOLLOWING, ("1", 99, 300), 0, None),
        (FOLLOWING, ("1", 100, 300), 0, OLD),
        (FOLLOWING, ("1", 300, 300), 0, NEW),
        # First answer, or first after a failover: on the timeline of the primary, all is well.
        (Progress(), ("1", 150, 150), 0, OLD),
        (Progress(PROMOTED), ("1", 200, 200), 0, NEW),
        # On another timeline, it may have WAL that the primary never had.
        (Progress(), ("0", 150, 150), 150, None),
        (Progress(PROMOTED), ("2", 150, 250), 250, None),
        # It is beyond that when it has replayed a sample behind it, whatever timeline it names.
        (Progress(PRIMARY, 150), ("0", 199, 300), 150, None),
        (Progress(PRIMARY, 150), ("0", 200, 300), 150, NEW),
        (Progress(PRIMARY, 200), ("0", 300, 300), 200, None),
    ],
)
def test_an_answer_shows_what_a_replica_has_replayed(
    before: Progress, place: tuple[str, int, int], min_lsn: int, caught: Sample | None
) -> None:
    """Compared with the samples of the primary; `place`: timeline, WAL replayed and received."""
    answer = Answer("db", *place, horizon=7)

    after = advance(before, answer, PRIMARY, SAMPLES)

    assert after == Progress(PRIMARY, min_lsn, caught, 7)


def test_an_age_that_nobody_knows_is_infinite() -> None:
    """As the metrics show it."""
    assert measure_age(STATE, 11.5) == 0.5
    assert measure_age(STATE._replace(answers=False), 11.5) == inf
