"""Prometheus on loopback, with the rules of ops/, whose minutes last some seconds."""

import json
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from drills.lab import Lab
from drills.load import wait_until
from drills.processes import Process, find_free_port, find_program
from drills.service import ROOT

OPS = ROOT / "ops"
START_TIMEOUT_S = 30.0
MINUTE_S = 3  # what a minute of the rules lasts; their scrape interval is a quarter of it
SCRAPE_MS = 750
# Sizes that no drill can reach.
SMALLER = {"400e6": "65e6", "10e6": "50e3", "> 900": "> 15"}
FIRING = "firing"


@dataclass
class Prometheus:
    """One running Prometheus; its errors are in the file `log`."""

    process: Process
    url: str
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response of the HTTP API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as response:  # noqa: S310 - it is http
            return json.load(response)["data"]

    def query(self, expression: str) -> list[float]:
        """Return the values of an expression now, without those that are no number."""
        result = self.get("query", query=expression)["result"]
        values = [float(series["value"][1]) for series in result]
        return [value for value in values if value == value]  # noqa: PLR0124 - NaN differs from itself

    def list_firing(self) -> dict[str, str]:
        """Return the descriptions of the alerts that fire, by their names."""
        alerts = self.get("alerts")["alerts"]
        return {
            alert["labels"]["alertname"]: alert["annotations"]["description"]
            for alert in alerts
            if alert["state"] == FIRING
        }

    async def wait_for(self, alert: str, timeout_s: float, *, is_firing: bool = True) -> float:
        """Wait until an alert fires, or does no more; return the seconds, or infinity."""

        def has_changed() -> bool:
            return (alert in self.list_firing()) == is_firing

        return await wait_until(has_changed, timeout_s)


async def start_prometheus(lab: Lab, target: int) -> Prometheus:
    """Start it in a new folder, with the configuration and rules of ops/, and scrape a port."""
    folder = lab.new_folder("prometheus")
    _write_configuration(folder, target)
    port, log = find_free_port(), folder / "log"
    command: list[str | Path] = [
        find_program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with log.open("wb") as output:
        process = lab.processes.start(command, output=output)
    prometheus = Prometheus(process, f"http://127.0.0.1:{port}", log)

    def is_up() -> bool:
        try:
            return prometheus.query("up") == [1]
        except OSError:
            return False

    if await wait_until(is_up, START_TIMEOUT_S) == inf:
        raise RuntimeError(f"Prometheus does not scrape the service: {log.read_text()}")
    return prometheus


def _write_configuration(folder: Path, target: int) -> None:
    folder.mkdir()
    rules = (OPS / "alerts.yml").read_text()
    for size, smaller in SMALLER.items():
        rules = rules.replace(size, smaller)
    rules = re.sub(r"\b(\d+)m\b", lambda found: f"{int(found[1]) * MINUTE_S}s", rules)
    (folder / "alerts.yml").write_text(rules)
    settings = (OPS / "prometheus.yml").read_text()
    settings = settings.replace("127.0.0.1:9100", f"127.0.0.1:{target}")
    settings = settings.replace("interval: 15s", f"interval: {SCRAPE_MS}ms")
    (folder / "prometheus.yml").write_text(settings)
