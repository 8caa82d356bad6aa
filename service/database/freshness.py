"""Decides whether a replica may serve a read, from its answers and from samples of the primary.

Nothing here asks or changes anything. docs/decisions/0019-read-from-replicas.md says what each
condition prevents.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

Identity = tuple[str, str]  # the database of a primary, with its cluster, and its timeline


class Sample(NamedTuple):
    """The primary at a moment: a replica that has replayed `lsn` shows what was committed then."""

    taken_at: float  # by the loop's clock, before the primary was asked
    lsn: int


class Answer(NamedTuple):
    """A row of `get_replica_state`."""

    database: str
    timeline: str
    lsn: int  # replayed
    received: int
    horizon: int  # it shows every commit of a lower transaction


class Progress(NamedTuple):
    """What the answers of a replica have shown."""

    follows: Identity | None = None  # the primary at the last answer
    min_lsn: int = 0  # it serves no reads before it has replayed WAL beyond this
    caught: Sample | None = None  # the newest sample that it has replayed beyond `min_lsn`
    horizon: int = 0  # 0: no reads until its next answer


class State(NamedTuple):
    """A replica and the primary as they are known at a moment."""

    progress: Progress
    answers: bool  # the replica, on a connection that has been open since
    primary: Identity | None
    newest: Sample | None  # of the primary
    primary_answers: bool
    primary_is_away: bool  # nobody here reaches it


def advance(
    before: Progress, answer: Answer, primary: Identity | None, samples: Sequence[Sample]
) -> Progress:
    """Return the progress after an answer; `samples`: of this primary, the oldest first."""
    if before.follows == primary:
        min_lsn = before.min_lsn
    elif primary and answer.timeline == primary[1]:
        min_lsn = 0
    else:
        # After a failover, it may have received WAL that the new primary never had: until it gets
        # beyond this LSN, it may be on the former timeline.
        min_lsn = answer.received
    caught = next((sample for sample in reversed(samples) if sample.lsn <= answer.lsn), None)
    is_beyond = caught is not None and caught.lsn > min_lsn
    return Progress(primary, min_lsn, caught if is_beyond else None, answer.horizon)


def measure_age(state: State, now: float) -> float:
    """Return how old the replica's data may be, in seconds; infinite if that is unknown."""
    caught, follows = state.progress.caught, state.progress.follows
    if not caught or not state.answers or follows != state.primary:
        return inf
    return now - caught.taken_at


def may_serve(state: State, transaction: int, now: float, max_lag: float) -> bool:
    """Whether it shows `transaction` (0: any), and its data is young enough.

    If the primary is away, its last sample is enough, too, but it is for no transaction: the
    next primary may use the numbers of lost transactions again.
    """
    age, progress = measure_age(state, now), state.progress
    # A horizon of 0 refuses every transaction: a read has failed since the last answer.
    if age == inf or transaction >= progress.horizon or (transaction and not state.primary_answers):
        return False
    return age <= max_lag or (state.primary_is_away and progress.caught is state.newest)
