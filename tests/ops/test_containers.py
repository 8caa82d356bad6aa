"""Containerfile, compose.yaml and ops/kubernetes.yaml fit the service and each other."""

import json
import re
from math import ceil
from typing import Any

import yaml  # type: ignore[import-untyped]
from conftest import ROOT, Start
from support import Environment, get_app

from service import config
from service.config import Config
from service.web.server import OPERATIONS_APP

CONTAINERFILE = (ROOT / "Containerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
MANIFESTS = {
    each["kind"]: each
    for each in yaml.safe_load_all((ROOT / "ops" / "kubernetes.yaml").read_text())
}


def read_instruction(name: str) -> Any:
    """Return the arguments of an instruction in the exec form, which needs no shell."""
    (arguments,) = re.findall(rf"^{name} (\[.*\])$", CONTAINERFILE, re.MULTILINE)
    return json.loads(arguments)


def get_pod(kind: str) -> Any:
    """Return the pod of a manifest."""
    return MANIFESTS[kind]["spec"]["template"]["spec"]


def load_settings(environ: Environment) -> Config:
    """Load the settings of a container; the files of secrets are not here."""
    files = {name for name in environ if name in config.SECRET_FILES}
    return config.load(
        ROOT / "config.toml", {name: environ[name] for name in environ.keys() - files}
    )


def count_seconds_to_stop(settings: Config) -> int:
    """Return after how long gunicorn kills its workers."""
    server = settings.server
    return ceil(server.drain_delay + server.shutdown_timeout) + 5


def test_the_image_runs_the_commands_of_the_procfile() -> None:
    """With another command, `migrate` or any other one."""
    entry = read_instruction("ENTRYPOINT")
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())

    assert lines["web"].endswith(" ".join([*entry, *read_instruction("CMD")]))
    for migrate in (COMPOSE["migrate"]["command"], get_pod("Job")["containers"][0]["args"]):
        assert lines["release"] == " ".join([*entry, *migrate])


def test_the_image_is_not_root_and_has_the_python_of_other_platforms() -> None:
    """The user is a number, or Kubernetes could not tell; pods have the same one."""
    (user,) = re.findall(r"^USER (\d+):\d+$", CONTAINERFILE, re.MULTILINE)
    version = (ROOT / ".python-version").read_text().strip()

    assert int(user) > 0
    assert f"ARG BASE=python:{version}-slim\n" in CONTAINERFILE
    for kind in ("Job", "Deployment"):
        assert get_pod(kind)["securityContext"]["runAsUser"] == int(user)


def test_nothing_can_be_written_in_a_container() -> None:
    """Neither of docker compose nor of Kubernetes."""
    for name in ("migrate", "catalogue-1", "catalogue-2"):
        assert COMPOSE[name]["read_only"]
    for kind in ("Job", "Deployment"):
        (container,) = get_pod(kind)["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_a_stop_has_time_to_end_before_the_container_is_killed() -> None:
    """drain_delay + shutdown_timeout + 5 s is less than the grace period."""
    pod = get_pod("Deployment")
    environ = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}

    assert pod["terminationGracePeriodSeconds"] > count_seconds_to_stop(load_settings(environ))
    for name in ("catalogue-1", "catalogue-2"):
        service = COMPOSE[name]
        grace = int(service["stop_grace_period"].removesuffix("s"))
        assert grace > count_seconds_to_stop(load_settings(service["environment"]))


async def test_the_probes_ask_for_paths_of_the_operations_port(start: Start) -> None:
    """Liveness does not use the database; readiness does, and takes its time."""
    (container,) = get_pod("Deployment")["containers"]
    environ = {each["name"]: each["value"] for each in container["env"]}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    app = get_app(await start())[OPERATIONS_APP]
    paths = {route.resource.canonical for route in app.router.routes() if route.resource}

    live, ready = (container[f"{name}Probe"] for name in ("liveness", "readiness"))
    assert (live["httpGet"]["path"], ready["httpGet"]["path"]) == ("/live", "/ready")
    assert {"/live", "/ready"} <= paths
    assert {live["httpGet"]["port"], ready["httpGet"]["port"]} == {"operations"}
    assert ports["operations"] == load_settings(environ).operations.port
    settings = load_settings({}).database
    assert ready["timeoutSeconds"] >= settings.acquire_timeout + settings.statement_timeout


def test_only_the_job_has_the_password_of_the_owner() -> None:
    """The Secrets are mounted as files where the variables say; they are not in the manifest."""
    secrets = {}
    for kind in ("Job", "Deployment"):
        pod = get_pod(kind)
        (volume,), (container,) = pod["volumes"], pod["containers"]
        (mount,) = container["volumeMounts"]
        secrets[kind] = volume["secret"]["secretName"]
        assert mount["name"] == volume["name"]
        environ = {each["name"]: each["value"] for each in container["env"]}
        assert environ["DATABASE_URL_FILE"].startswith(f"{mount['mountPath']}/")

    assert secrets == {"Job": "movie-catalogue-owner", "Deployment": "movie-catalogue-app"}
    assert "Secret" not in MANIFESTS


def test_service_and_budget_select_the_pods_of_the_deployment() -> None:
    """One of two pods stays while nodes are drained; the migrations are not among them."""
    labels = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    budget = MANIFESTS["PodDisruptionBudget"]["spec"]

    assert MANIFESTS["Service"]["spec"]["selector"] == labels
    assert budget["selector"]["matchLabels"] == labels
    assert 0 < budget["minAvailable"] < MANIFESTS["Deployment"]["spec"]["replicas"]
    assert MANIFESTS["Job"]["spec"]["template"]["metadata"]["labels"] != labels
