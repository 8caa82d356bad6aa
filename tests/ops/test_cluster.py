"""ops/cluster/: the three files agree with each other, and with what `make cluster` starts.

The cluster itself needs programs that tests do not: `make cluster-drill` tests it.
"""

import re
import shutil
import subprocess

import pytest
import yaml  # type: ignore[import-untyped]
from conftest import ROOT

from drills.cluster.state import API_PORT, MEMBERS, PORTS, PRIMARY_PORT, SERVICES
from service import config

CLUSTER = ROOT / "ops" / "cluster"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")


def read_haproxy(section: str) -> str:
    """Return the lines of a section of haproxy.cfg."""
    sections = re.split(r"^(?=\w)", (CLUSTER / "haproxy.cfg").read_text(), flags=re.MULTILINE)
    return next(text for text in sections if text.startswith(f"listen {section}\n"))


def test_every_port_is_on_loopback_and_none_is_a_clients() -> None:
    """The kernel gives ports from 32768 on to clients, so one of them may be taken at a start."""
    text = "".join(path.read_text() for path in CLUSTER.iterdir())

    addresses = re.findall(r"([\w.*]+):(\d{4,})", text)

    assert {host for host, _ in addresses} == {"127.0.0.1"}
    assert {int(port) for _, port in addresses} <= set(PORTS)
    assert max(PORTS) < 32768


def test_haproxy_asks_the_patroni_of_each_postgresql() -> None:
    """Each server is checked at the port of its own Patroni."""
    text = read_haproxy("primary")

    servers = re.findall(r"^  server (\w+) 127.0.0.1:(\d+) port (\d+)$", text, re.MULTILINE)

    assert f"bind 127.0.0.1:{PRIMARY_PORT}\n" in text
    assert servers == [(each.name, str(each.port), str(each.rest_port)) for each in MEMBERS]


def test_haproxy_knows_both_services() -> None:
    """Each one twice: checked, and for the case that none is ready."""
    text = read_haproxy("api")

    servers = re.findall(r"^  server [\w-]+ 127.0.0.1:(\d+)", text, re.MULTILINE)

    assert f"bind 127.0.0.1:{API_PORT}\n" in text
    assert list(map(int, servers)) == [*SERVICES.values()] * 2


def test_haproxy_waits_longer_than_the_service() -> None:
    """The service's own 503 arrives."""
    settings = config.load(ROOT / "config.toml", {})

    timeout = re.search(r"timeout server (\d+)s", read_haproxy("api"))

    assert timeout
    assert int(timeout[1]) > settings.server.request_timeout


def test_a_leader_that_waits_for_etcd_keeps_its_key() -> None:
    """https://patroni.readthedocs.io/en/latest/dynamic_configuration.html has the rule."""
    settings = yaml.safe_load((CLUSTER / "patroni.yml").read_text())["bootstrap"]["dcs"]

    assert settings["ttl"] >= settings["loop_wait"] + 2 * settings["retry_timeout"]


@pytest.mark.skipif(not HAPROXY, reason="haproxy is not installed")
def test_haproxy_accepts_its_file() -> None:
    """Without a warning."""
    checked = subprocess.run(
        [str(HAPROXY), "-c", "-q", "-f", CLUSTER / "haproxy.cfg"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (checked.stdout + checked.stderr, checked.returncode) == ("", 0)
