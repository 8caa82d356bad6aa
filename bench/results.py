"""Collects the measurements of a run and calculates their statistics.

Other programs on the machine can distort a measurement. So targets take turns, a ratio compares
measurements of the same round, and the median of all rounds counts.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

METRICS = ("rate", "p50", "p99", "service_cpu", "database_cpu", "generator_cpu", "other_programs")


@dataclass(frozen=True)
class Measurement:
    """One target with one workload, once. Times: ms; CPU times: microseconds per request."""

    rate: float  # responses per second
    p50: float
    p99: float
    max: float
    requests: int
    seconds: float
    errors: dict[str, int]
    service_cpu: float | None
    database_cpu: float | None
    generator_cpu: float | None
    other_programs: float | None  # their share of the machine's CPU time
    added: int = 0  # rows
    confirmed: int = 0  # creates with a 201 response, at least
    surplus: int = 0  # rows added without a create

    @property
    def lost(self) -> int:
        """Confirmed creates whose row is missing."""
        return max(0, self.confirmed - self.added)

    @property
    def failed(self) -> int:
        """Requests with an error status, or without a response."""
        return sum(self.errors.values())


@dataclass
class Cell:
    """One target with one workload, in every round."""

    target: str
    workload: str
    connections: int
    rounds: dict[int, Measurement] = field(default_factory=dict)

    def get_values(self, metric: str) -> list[float]:
        """Return the metric's value in each round that has one."""
        values = (getattr(measurement, metric) for measurement in self.rounds.values())
        return [value for value in values if value is not None]

    def get_median(self, metric: str) -> float | None:
        """Return the median of the rounds."""
        values = self.get_values(metric)
        return median(values) if values else None

    def get_ratio(self, base: "Cell", metric: str) -> float | None:
        """Divide each round's value by the value of `base`; return the median."""
        ratios = []
        for number in self.rounds.keys() & base.rounds.keys():
            value = getattr(self.rounds[number], metric)
            base_value = getattr(base.rounds[number], metric)
            if value is not None and base_value:
                ratios.append(value / base_value)
        return median(ratios) if ratios else None

    def summarize(self, base: "Cell | None") -> dict[str, Any]:
        """Return median, minimum and maximum of each metric, and the ratio to `base`."""
        summary: dict[str, Any] = {}
        for metric in METRICS:
            if values := self.get_values(metric):
                ratio = self.get_ratio(base, metric) if base else None
                summary[metric] = {
                    "median": median(values),
                    "min": min(values),
                    "max": max(values),
                    "ratio": ratio,
                }
        return summary


class Results:
    """All cells of a run, in the order of their first measurement."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str, int], Cell] = {}

    def add(
        self, target: str, workload: str, connections: int, number: int, measurement: Measurement
    ) -> None:
        """Add a measurement of round `number`."""
        key = (target, workload, connections)
        self.cells.setdefault(key, Cell(*key)).rounds[number] = measurement

    def get_cell(self, target: str, workload: str, connections: int) -> Cell | None:
        """Return the cell, or None if it was not measured."""
        return self.cells.get((target, workload, connections))

    def get_cells(self, target: str) -> list[Cell]:
        """Return all cells of one target."""
        return [cell for cell in self.cells.values() if cell.target == target]

    def get_ratio(
        self, metric: str, workload: str, connections: int, targets: tuple[str, str]
    ) -> float | None:
        """Return the ratio of the first target to the second, if both were measured."""
        cell, base = (self.get_cell(target, workload, connections) for target in targets)
        return cell.get_ratio(base, metric) if cell and base else None


def save(path: Path, results: Results, base: str, about: dict[str, Any]) -> None:
    """Write the results, and `about` the run, as JSON."""
    cells = []
    for cell in results.cells.values():
        base_cell = results.get_cell(base, cell.workload, cell.connections)
        cells.append(
            {
                "target": cell.target,
                "workload": cell.workload,
                "connections": cell.connections,
                "summary": cell.summarize(base_cell),
                "rounds": [
                    {"round": number, **asdict(measurement), "lost": measurement.lost}
                    for number, measurement in cell.rounds.items()
                ],
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**about, "cells": cells}, indent=1) + "\n")
