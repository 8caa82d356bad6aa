"""What was measured, and the statistics of it.

Another program on the same machine can spoil a measurement. So targets take turns, ratios are of
measurements made in the same round, minutes apart, and of all rounds the median counts.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

METRICS = ("rate", "p50", "p99", "service_cpu", "database_cpu", "generator_cpu", "elsewhere")


@dataclass(frozen=True)
class Measurement:
    """One target under one workload, once. Times in ms; CPU in microseconds for each request."""

    rate: float  # requests answered in a second
    p50: float
    p99: float
    max: float
    requests: int
    seconds: float
    errors: dict[str, int]
    service_cpu: float | None
    database_cpu: float | None
    generator_cpu: float | None
    elsewhere: float | None  # the share of the machine's CPU time that other programs took
    added: int = 0  # movies that the table holds more than before
    answered: int = 0  # creates that were answered 201, at least
    surplus: int = 0  # movies beyond what was sent

    @property
    def lost(self) -> int:
        """Creates that were answered and are not there."""
        return max(0, self.answered - self.added)

    @property
    def failed(self) -> int:
        """Requests that got an error, or no answer."""
        return sum(self.errors.values())


@dataclass
class Cell:
    """One target under one workload, in every round."""

    target: str
    workload: str
    connections: int
    rounds: dict[int, Measurement] = field(default_factory=dict)

    def values(self, metric: str) -> list[float]:
        """This metric of each round that has it."""
        found = (getattr(measurement, metric) for measurement in self.rounds.values())
        return [value for value in found if value is not None]

    def median(self, metric: str) -> float | None:
        """The median over the rounds."""
        values = self.values(metric)
        return median(values) if values else None

    def ratio(self, other: "Cell", metric: str) -> float | None:
        """The median of what each round has of this cell, divided by what it has of the other."""
        ratios = []
        for number in self.rounds.keys() & other.rounds.keys():
            mine = getattr(self.rounds[number], metric)
            others = getattr(other.rounds[number], metric)
            if mine is not None and others:
                ratios.append(mine / others)
        return median(ratios) if ratios else None

    def summary(self, base: "Cell | None") -> dict[str, Any]:
        """Median, least and most of each metric, and the ratio to `base`."""
        summary: dict[str, Any] = {}
        for metric in METRICS:
            if values := self.values(metric):
                ratio = self.ratio(base, metric) if base else None
                summary[metric] = {
                    "median": median(values),
                    "min": min(values),
                    "max": max(values),
                    "ratio": ratio,
                }
        return summary


class Results:
    """All cells of a run, in the order in which they were first measured."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str, int], Cell] = {}

    def add(
        self, target: str, workload: str, connections: int, number: int, made: Measurement
    ) -> None:
        """Enter what one round measured."""
        key = (target, workload, connections)
        self.cells.setdefault(key, Cell(*key)).rounds[number] = made

    def cell(self, target: str, workload: str, connections: int) -> Cell | None:
        """One cell, if it was measured."""
        return self.cells.get((target, workload, connections))

    def of(self, target: str) -> list[Cell]:
        """All cells of one target."""
        return [cell for cell in self.cells.values() if cell.target == target]

    def ratio(
        self, metric: str, workload: str, connections: int, targets: tuple[str, str]
    ) -> float | None:
        """The ratio of the first target to the second, where both were measured."""
        one, other = (self.cell(target, workload, connections) for target in targets)
        return one.ratio(other, metric) if one and other else None


def save(path: Path, results: Results, base: str, about: dict[str, Any]) -> None:
    """Write all of it as JSON."""
    cells = []
    for cell in results.cells.values():
        reference = results.cell(base, cell.workload, cell.connections)
        cells.append(
            {
                "target": cell.target,
                "workload": cell.workload,
                "connections": cell.connections,
                "summary": cell.summary(reference),
                "rounds": [
                    {"round": number, **asdict(made), "lost": made.lost}
                    for number, made in cell.rounds.items()
                ],
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, "cells": cells}, indent=1) + "\n")
