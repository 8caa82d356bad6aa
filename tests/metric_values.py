"""Reads the metrics of a service under test."""

import re

from conftest import Client
from prometheus_client.parser import text_string_to_metric_families
from support import get_app

from service.telemetry.metrics import Metrics
from service.web.middleware import CYCLE

TOKEN = "0123456789abcdef"


def read_series(metrics: Metrics) -> dict[str, float]:
    """Return the value of each series, named without the prefix, as `name{label=value,...}`."""
    metrics.sample()
    return parse(metrics.render().decode())


def read_metrics(client: Client) -> dict[str, float]:
    """Return the same of a client's service."""
    return read_series(get_app(client)[CYCLE].metrics)


def parse(text: str) -> dict[str, float]:
    """Return the value of each series of Prometheus' text format, as `read_series` does."""
    return {
        re.sub(
            r"\{\}$",
            "",
            f"{sample.name.removeprefix('catalogue_')}"
            f"{{{','.join(f'{name}={value}' for name, value in sorted(sample.labels.items()))}}}",
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
