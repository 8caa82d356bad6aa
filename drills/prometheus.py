"""Prometheus on loopback, with the rules of ops/, in which a minute is replaced by seconds."""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Sequence
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
MINUTE_S = 3  # replaces a minute of the rules; the scrape interval is a quarter of it
SCRAPE_MS = 750
# Thresholds that no drill can reach.
SMALLER = {"10e6": "50e3", "> 600": "> 10"}


@dataclass
class Prometheus:
    """One running Prometheus."""

    process: Process
    url: str

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response of the HTTP API."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as response:  # noqa: S310 - it is http
            return json.load(response)["data"]

    def list_firing(self) -> dict[str, str]:
        """Return the descriptions of the alerts that fire, by their names."""
        alerts = self.get("alerts")["alerts"]
        return {
            alert["labels"]["alertname"]: alert["annotations"]["description"]
            for alert in alerts
            if alert["state"] == "firing"
        }

    async def wait_for(
        self, alerts: Sequence[str], timeout_s: float, *, are_firing: bool = True
    ) -> float:
        """Wait until all alerts fire, or none does; return the seconds, or infinity."""

        def have_changed() -> bool:
            firing = self.list_firing()
            return all((alert in firing) == are_firing for alert in alerts)

        return await wait_until(have_changed, timeout_s)


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
    prometheus = Prometheus(process, f"http://127.0.0.1:{port}")

    def is_up() -> bool:
        try:
            return bool(prometheus.get("query", query="up == 1")["result"])
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
