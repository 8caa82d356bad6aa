"""Tests ops/: alerts and dashboard use metrics that exist, and operators read of every alert."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from conftest import ROOT
from processes import run
from support import Execute, list_metrics

OPS = ROOT / "ops"
# The files of rules, each with its tests.
RULES = {
    "alerts.yml": "alerts_test.yml",
    "alerts-infrastructure.yml": "alerts_infrastructure_test.yml",
}
HANDBOOK = (ROOT / "docs/operators/alerts.md").read_text()
PROMTOOL = shutil.which("promtool")
# Of every series that Prometheus scrapes.
PROMETHEUS_LABELS = {"job", "instance", "le"}
# What Grafana's variables in PromQL stand for.
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*"}


def list_rules(name: str = "alerts.yml") -> list[dict[str, Any]]:
    """Return the alerts of a file."""
    groups = yaml.safe_load((OPS / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def list_panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show something."""
    panels = json.loads((OPS / "dashboard.json").read_text())["panels"]
    return [panel for panel in panels if panel["type"] != "row"]


def list_expressions() -> Iterator[str]:
    """Yield every PromQL expression of ops/."""
    dashboard = json.loads((OPS / "dashboard.json").read_text())
    yield from (rule["expr"] for rule in list_rules())
    yield from (target["expr"] for panel in list_panels() for target in panel["targets"])
    yield from (annotation["expr"] for annotation in dashboard["annotations"]["list"])
    for variable in dashboard["templating"]["list"]:
        yield re.sub(r"^label_values\((.*), (\w+)\)$", r"\1{\2!=''}", variable["definition"])


def replace_variables(expression: str) -> str:
    """Replace Grafana's variables."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def parse_names(expression: str) -> tuple[set[str], set[str]]:
    """Return the names of the service's metrics and of labels in a PromQL expression."""
    text = re.sub(r"\"[^\"]*\"|'[^']*'", '""', expression)
    labels = set(re.findall(r"[{,]\s*(\w+)\s*(?:=|!)", text))
    for grouped in re.findall(r"\b(?:by|without|on|ignoring)\s*\((.*?)\)", text):
        labels |= set(re.findall(r"\w+", grouped))
    return set(re.findall(r"\bcatalogue_\w+", text)), labels


def list_series() -> dict[str, set[str]]:
    """Return the names of the series that Prometheus stores, each with its labels."""
    series: dict[str, set[str]] = {}
    for name, kind, labels in list_metrics():
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            series[name + suffix] = set(labels)
    return series


def test_every_expression_uses_metrics_and_labels_that_exist() -> None:
    """A metric that is renamed would turn an alert off without a word."""
    series = list_series()
    unknown = []
    for expression in list_expressions():
        metrics, labels = parse_names(expression)
        known = set.union(PROMETHEUS_LABELS, *(series.get(name, set()) for name in metrics))
        unknown += [*(metrics - set(series)), *(labels - known)]

    assert unknown == []


def test_the_dashboard_shows_every_metric() -> None:
    """A metric that nobody sees is not worth its cost."""
    shown = "".join(target["expr"] for panel in list_panels() for target in panel["targets"])

    assert [name for name, *_ in list_metrics() if name not in shown] == []


def test_every_panel_has_a_title_and_says_what_it_shows() -> None:
    """The description is a sentence."""
    panels = list_panels()

    assert len({panel["title"] for panel in panels}) == len(panels) > 10
    assert [panel["title"] for panel in panels if not panel["description"].endswith(".")] == []


def test_every_alert_has_a_section_and_every_section_an_alert() -> None:
    """`runbook` leads to the section in docs/operators/alerts.md."""
    rules = list_rules()

    assert re.findall(r"^### (Catalogue\w+)$", HANDBOOK, re.MULTILINE) == [
        rule["alert"] for rule in rules
    ]
    for rule in rules:
        runbook = f"docs/operators/alerts.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook"] == runbook
        assert "$value" in rule["annotations"]["description"] or rule["alert"] == "CatalogueDown"


def test_every_alert_on_other_parts_has_a_row_and_every_row_an_alert() -> None:
    """The table of docs/operators/infrastructure.md says what to do."""
    path = "docs/operators/infrastructure.md"
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", (ROOT / path).read_text(), re.MULTILINE)
    rules = list_rules("alerts-infrastructure.yml")

    assert sorted(re.findall(r"\w+", " ".join(rows))) == sorted(rule["alert"] for rule in rules)
    assert {rule["annotations"]["runbook"] for rule in rules} == {path}


@pytest.mark.parametrize("name", RULES)
def test_every_alert_says_what_it_means(name: str) -> None:
    """In sentences, and how severe it is."""
    for rule in list_rules(name):
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"].endswith(".")
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_sql_of_the_sections_runs(execute: Execute) -> None:
    """As a superuser; nobody has the PID 0."""
    spans = [" ".join(span.split()) for span in re.findall(r"`((?:select|show) [^`]+)`", HANDBOOK)]
    (block,) = re.findall(r"```sql\n(.*?)```", HANDBOOK, re.DOTALL)
    assert len(spans) > 5
    for sql in (block, *spans):
        if "(pid)" not in sql or "pg_blocking" in sql:  # of a session that was found before
            execute(sql.replace("PID", "0"))


def test_the_events_that_the_sections_look_for_exist() -> None:
    """Each alternative of a `grep` is an event of docs/logs.md."""
    known = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/logs.md").read_text(), re.MULTILINE)
    patterns = re.findall(r"""grep (?:-E )?'(?:"event":)?"([a-z(][a-z ()|]+)"'""", HANDBOOK)

    assert len(patterns) > 5
    for pattern in patterns:
        found = {event for event in known if re.fullmatch(pattern, event)}
        assert len(found) == pattern.count("|") + 1, pattern


def test_a_cause_mutes_its_consequences() -> None:
    """ops/alertmanager.yml names alerts that exist, and a warning mutes no critical alert."""
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in list_rules()}
    rules = yaml.safe_load((OPS / "alertmanager.yml").read_text())["inhibit_rules"]

    for rule in rules:
        sources, targets = (
            set(re.findall(r"Catalogue\w+", rule[f"{side}_matchers"][0]))
            for side in ("source", "target")
        )
        assert sources | targets <= severities.keys()
        assert {severities[each] for each in sources} == {"critical"} or {
            severities[each] for each in targets
        } == {"warning"}


@pytest.mark.parametrize("name", RULES)
def test_every_alert_is_tested(name: str) -> None:
    """Each has a test in which it fires."""
    tests = yaml.safe_load((ROOT / "tests" / "ops" / RULES[name]).read_text())["tests"]
    fired = {
        alert
        for test in tests
        for check in test["promql_expr_test"]
        for sample in check["exp_samples"]
        for alert in re.findall('alertname="(.*?)"', sample["labels"])
    }

    assert fired == {rule["alert"] for rule in list_rules(name)}


@pytest.mark.skipif(not PROMTOOL, reason="promtool is missing (apt-get install prometheus)")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "ops/prometheus.yml"),
        *(("check", "rules", f"ops/{name}") for name in RULES),
        *(("test", "rules", f"tests/ops/{name}") for name in RULES.values()),
    ],
    ids=" ".join,
)
def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    """The syntax of rules and configuration, and which alerts fire when."""
    status, out, err = run([str(PROMTOOL), *arguments], {})

    assert status == 0, out + err


@pytest.mark.skipif(not PROMTOOL, reason="promtool is missing (apt-get install prometheus)")
def test_promtool_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    """Their syntax; as recording rules, as promtool reads no dashboard."""
    rules = [
        {"record": f"query:{number}", "expr": replace_variables(expression)}
        for number, expression in enumerate(list_expressions())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    status, out, err = run([str(PROMTOOL), "check", "rules", str(path)], {})

    assert status == 0, out + err
