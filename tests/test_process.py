"""Tests the processes that operators start: `python -m service ...` and gunicorn."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import ROOT
from processes import (
    BIN,
    GUNICORN,
    SERVE,
    WEB,
    find_processes,
    find_workers,
    free_port,
    get,
    run,
    serving,
)
from psycopg2.extensions import parse_dsn
from support import (
    WAIT_S,
    Environment,
    Execute,
    add_movies,
    hold,
    run_here,
    started,
    wait_until,
    with_user,
)

from service import config

CONFIG = [sys.executable, "-m", "service", "config"]


def test_serve_from_its_start_to_ctrl_c(environment: Environment) -> None:
    """It prints the reference's URL and a command to try, but no password.

    Ctrl-C ends it with status 0 and one line; without a terminal, the log is JSON.
    """
    user = parse_dsn(environment["DATABASE_URL"])["user"]
    url = with_user(environment["DATABASE_URL"], f"{user}:hush")
    with serving(SERVE, environment, DATABASE_URL=url) as (base, process):
        get(f"{base}/v1/movies/1")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    listening, database, reference, example, stopped = err.splitlines()
    assert listening == f"listening on {base}"
    assert "password=***" in database
    assert "hush" not in out + err
    assert reference == f"reference: {base}/v1/docs"
    assert example.startswith("try: curl ")
    assert stopped == "stopped"
    assert process.returncode == 0
    events = [json.loads(line) for line in out.splitlines()]
    last = {"event": "request", "route": "/v1/movies/{id}", "status": 404}
    assert last.items() <= events[-1].items()
    assert "anyone can write" not in out  # loopback is no network


def test_ctrl_c_during_the_start(environment: Environment) -> None:
    """Ctrl-C is one line while the service waits for its database."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        environment["DATABASE_URL"] = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/x"
        with subprocess.Popen(
            [*SERVE, "--migrate"], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            connection, _ = silent.accept()
            process.send_signal(signal.SIGINT)
            connection.close()  # psycopg2 notices the signal when it stops waiting
            _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (128 + signal.SIGINT, "stopped\n")


STATE = """
select (select count(*) from movies), (select count(*) from clients),
       (select max(version) from schema_migrations)
"""


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ("migrate", 130, "stopped"),
        ("clients add new --scopes read", 130, "stopped"),
        ("import samples/movies.csv", 1, "Error: interrupted: nothing was imported"),
        ("export -", 1, "Error: interrupted"),
    ],
)
def test_ctrl_c_ends_a_command_that_waits_for_a_lock(  # noqa: PLR0913
    environment: Environment,
    checkout: Path,
    database: str,
    execute: Execute,
    *,
    words: str,
    status: int,
    line: str,
) -> None:
    """At once, although the lock is still held: its statement is cancelled, nothing has changed."""
    environment["CATALOGUE_CONFIG"] = str(checkout / "config.toml")
    (checkout / "migrations" / "20991231000000_add_index.sql").write_text(
        "-- migrate:up transaction:false\ncreate index concurrently mine on movies (id);\n"
    )
    waiting = (  # not autovacuum
        "select 1 from pg_locks join pg_stat_activity using (pid)"
        " where not granted and backend_type = 'client backend'"
    )
    before = execute(STATE)
    with (
        hold(database, "lock table movies, clients"),
        started(environment, *words.split()) as process,
    ):
        wait_until(lambda: execute(waiting))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        wait_until(lambda: not execute(waiting))

    assert (process.returncode, out, err.decode()) == (status, b"", f"{line}\n")
    assert execute(STATE) == before


def connect(base: str) -> socket.socket:
    """Open a connection, which must not have to be tried again: that takes a second."""
    return socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])), timeout=0.9)


@pytest.mark.parametrize("command", [SERVE, GUNICORN], ids=["serve", "gunicorn"])
def test_clients_wait_in_the_backlog(environment: Environment, command: list[str]) -> None:
    """More than the system's usual 128 connect while no process accepts them."""
    environment["LOG_LEVEL"] = "warning"  # nobody reads its stdout
    with serving(command, environment) as (base, process):
        os.killpg(process.pid, signal.SIGSTOP)
        clients = [connect(base) for _ in range(300)]
        for client in clients:
            client.sendall(b"GET /v1/movies/1 HTTP/1.1\r\nHost: a\r\n\r\n")
        os.killpg(process.pid, signal.SIGCONT)
        statuses = set()
        for client in clients:
            client.settimeout(60)
            statuses.add(client.recv(12))
            client.close()

    assert statuses == {b"HTTP/1.1 404"}


def test_not_ready_while_it_drains(environment: Environment) -> None:
    """After SIGTERM readiness is 503 for drain_delay, requests succeed, and then it ends."""
    with serving(SERVE, environment, CATALOGUE_SERVER_DRAIN_DELAY="2") as (base, process):
        process.terminate()
        wait_until(lambda: get(f"{base}/v1/healthcheck/ready") == 503)
        statuses = [get(f"{base}/v1/{path}") for path in ("healthcheck", "movies/1")]
        _, err = process.communicate(timeout=60)

    assert statuses == [200, 404]
    assert (process.returncode, err.splitlines()[-1]) == (0, "stopped")


def test_an_output_that_nobody_reads(environment: Environment) -> None:
    """Requests are served, and the status is 0, although the pipe of the log is full."""
    with serving(SERVE, environment) as (base, process):
        assert process.stdout
        writer = os.open(f"/proc/self/fd/{process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while True:
                os.write(writer, b"x")
        os.close(writer)
        statuses = {get(f"{base}/v1/movies/1") for _ in range(60)}
        process.terminate()

        assert process.wait(60) == 0
    assert statuses == {404}


def test_serve_with_an_embedded_postgresql(environment: Environment, checkout: Path) -> None:
    """Without DATABASE_URL: migrated, and shared with a command at the same time."""
    del environment["DATABASE_URL"]
    environment["CATALOGUE_CONFIG"] = str(checkout / "config.toml")
    with serving([*SERVE, "--migrate"], environment) as (base, process):
        status, out, _ = run([sys.executable, "-m", "service", "migrate", "status"], environment)
        listed = get(f"{base}/v1/movies")
        process.terminate()
        process.wait(60)

    assert (status, listed) == (0, 200)
    assert "create_movies" in out
    assert not (checkout / ".postgres" / "data" / "postmaster.pid").exists()


@pytest.mark.parametrize(
    ("variable", "hint"),
    [("PORT", ""), ("CATALOGUE_OPERATIONS_PORT", "; [operations] host and port set the address")],
)
def test_a_port_that_is_taken(environment: Environment, variable: str, hint: str) -> None:
    """One line names the port, and the setting if it is not HOST and PORT; the status is 1."""
    environment["CATALOGUE_SERVER_DRAIN_DELAY"] = "300"  # nobody has been served yet
    environment["PORT"] = str(free_port())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, out, err = run(SERVE, environment, **{variable: port})

    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"Error: cannot listen on 127.0.0.1:{port}: ")
    assert err.endswith(f"{hint}\n")


@pytest.mark.parametrize("options", [[], ["--bind=127.0.0.1:{}"]], ids=["PORT", "--bind"])
def test_a_port_that_is_taken_stops_gunicorn(environment: Environment, options: list[str]) -> None:
    """At once, with one line that names the port and the setting."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment["PORT"] = str(free_port() if options else port)
        command = [*GUNICORN, *(option.format(port) for option in options)]
        status, out, _ = run(command, environment)

    assert status == 1
    problems = [json.loads(line) for line in out.splitlines() if '"error"' in line]
    assert [problem["event"] for problem in problems] == ["not started"]
    assert re.match(rf"cannot listen on 127.0.0.1:{port}: .*HOST and PORT", problems[0]["reason"])


def test_gunicorn_takes_over_sockets(environment: Environment) -> None:
    """Of a master before it, which still listens (SIGUSR2), and in the same way of systemd."""
    with serving(GUNICORN, environment) as (base, process):
        process.send_signal(signal.SIGUSR2)
        wait_until(lambda: len(find_workers(process)) == 2)  # a worker, and the new master
        process.terminate()
        process.wait(60)
        wait_until(lambda: get(f"{base}/v1/healthcheck/ready") == 200)
        os.killpg(process.pid, signal.SIGTERM)
        out, _ = process.communicate(timeout=60)  # until the new master has ended

    assert "not started" not in out


def test_each_socket_of_gunicorn_serves_the_api(environment: Environment, tmp_path: Path) -> None:
    """Operators may name several with --bind; none of them has the operations port's paths.

    HOST and PORT are not used then; an empty variable is as a missing one.
    """
    taken = socket.create_server(("127.0.0.1", 0))
    environment |= {"PORT": str(taken.getsockname()[1]), "CATALOGUE_CONFIG": "", "LOG_LEVEL": ""}
    paths = [str(tmp_path / name) for name in "ab"]
    statuses = []
    with subprocess.Popen(
        [*GUNICORN, *(f"--bind=unix:{path}" for path in paths)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            while "Listening at" not in (line := process.stdout.readline()):
                assert line
            for path in paths:
                with socket.socket(socket.AF_UNIX) as client:
                    client.settimeout(WAIT_S)
                    client.connect(path)
                    client.sendall(b"GET /v1 HTTP/1.1\r\nHost: a\r\n\r\n")
                    statuses.append(client.recv(12))
        finally:
            process.terminate()

    taken.close()
    assert statuses == [b"HTTP/1.1 200"] * 2


def test_gunicorn_waits_for_the_drain_and_the_shutdown(environment: Environment) -> None:
    """And 5 s more, before it kills a worker."""
    environment["CATALOGUE_SERVER_DRAIN_DELAY"] = "6.5"
    environment["CATALOGUE_SERVER_SHUTDOWN_TIMEOUT"] = "20"

    _, printed, _ = run([*GUNICORN, "--print-config"], environment)

    assert re.search(r"^graceful_timeout += 32$", printed, re.MULTILINE)


def read_metrics(port: int) -> dict[str, float]:
    """Return the value of each series of the operations port; none if a killed worker had it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            lines = [line for line in response.read().decode().splitlines() if line[0] != "#"]
    except OSError:
        return {}
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics_of_two_workers_of_which_one_was_killed(environment: Environment) -> None:
    """Its requests still count; its gauges are gone; its replacement goes on counting.

    Its files have given back the space that they did not use. The folder in which they count is
    removed at the end; if somebody removes its files before, /metrics is a 503.
    """
    port = free_port()
    environment |= {"WEB_CONCURRENCY": "2", "CATALOGUE_OPERATIONS_PORT": str(port)}
    labels = 'method="GET",route="/v1/movies/{id}",status="404"'
    requests = f"catalogue_request_duration_seconds_count{{{labels}}}"
    with serving(GUNICORN, environment) as (base, process):
        wait_until(lambda: read_metrics(port).get("catalogue_processes") == 2)
        before = read_metrics(port)
        killed, _ = find_workers(process)
        files = Path(f"/proc/{killed}/maps").read_text()
        folder = Path(re.findall(r"(/\S+/movie-catalogue-metrics-\w+)/counter_", files)[0])
        statuses = [get(f"{base}/v1/movies/1") for _ in range(50)]
        wait_until(lambda: read_metrics(port).get(requests) == 50)  # counted after they are sent
        os.kill(killed, signal.SIGKILL)
        wait_until(
            lambda: (
                read_metrics(port).get("catalogue_start_time_seconds", 0)
                > before["catalogue_start_time_seconds"]
            )
        )
        wait_until(lambda: read_metrics(port).get("catalogue_pool_max_open_connections") == 20)
        replaced = read_metrics(port)
        statuses += [get(f"{base}/v1/movies/1") for _ in range(50)]
        wait_until(lambda: read_metrics(port).get(requests, 0) >= 100)
        after = read_metrics(port)
        is_counted_there = folder.is_dir()
        for file in folder.iterdir():
            file.unlink()
        without = get(f"http://127.0.0.1:{port}/metrics")
        process.terminate()
        process.communicate(timeout=60)

    assert statuses == [404] * 100
    assert (replaced[requests], after[requests]) == (50, 100)
    assert (after["catalogue_processes"], without) == (2, 503)
    assert after["catalogue_max_files"] > after["catalogue_open_files"] > 0
    assert process.returncode == 0
    assert (is_counted_there, folder.exists()) == (True, False)


def test_metrics_of_workers_without_space_for_them(environment: Environment) -> None:
    """They serve, and /metrics is a 503: to Prometheus, an empty page would be a success."""
    environment["CATALOGUE_OPERATIONS_PORT"] = port = str(free_port())
    limited = ["bash", "-c", 'ulimit -f 1000; exec "$@"', "bash", *GUNICORN]  # as a full disk
    with serving(limited, environment) as (base, process):
        statuses = [get(f"http://127.0.0.1:{port}/{path}") for path in ("ready", "metrics")]
        movie = get(f"{base}/v1/movies/1")
        process.terminate()
        out, _ = process.communicate(timeout=60)

    assert (*statuses, movie) == (200, 503, 404)
    assert '"event":"metrics off"' in out


def test_gunicorn_needs_a_database(environment: Environment) -> None:
    """One line of the log names the variable; the embedded database is for development only."""
    status, out, err = run(WEB, environment, DATABASE_URL="")

    assert (status, err) == (1, "")
    line = json.loads(out)
    assert (line["event"], line["level"]) == ("not started", "error")
    expected = "DATABASE_URL is not set: expected postgresql://user:password@host/name"
    assert line["reason"].endswith(expected)


@pytest.mark.parametrize("command", [SERVE, WEB, CONFIG], ids=["serve", "gunicorn", "config"])
def test_all_wrong_settings_are_reported_at_once(
    environment: Environment, tmp_path: Path, command: list[str]
) -> None:
    """Each with its own name, and with the setting that may be meant."""
    environment |= {"PORT": "http", "WEB_CONCURRENCY": "two"}  # gunicorn reads them, too
    path = tmp_path / "config.toml"
    path.write_text("[database]\nmax_opne = 5\nmax_idle = -1\n")

    status, out, err = run(command, environment, CATALOGUE_CONFIG=str(path))

    assert status == 1
    text = json.loads(out)["reason"] if command == WEB else err.removeprefix("Error: ")
    assert re.sub(r"\d+\.\d+|: must.*", "", text.strip()).split("\n") == [
        f"{path}: [database] max_idle",
        f"{path}: [database] max_opne: unknown setting; did you mean [database] max_open?",
        "PORT",
        "WEB_CONCURRENCY",
    ]


def test_config_shows_each_setting_and_where_it_comes_from(
    environment: Environment, tmp_path: Path
) -> None:
    """The file, a variable, or the default; passwords and tokens are hidden, wherever they are."""
    (tmp_path / "secret").write_text("postgresql://u:s3cret@127.0.0.1/d\n")
    path = tmp_path / "config.toml"
    path.write_text(
        '[operations]\ntoken = "s3cret-s3cret-s3cret"\n'
        '[database]\nreplica_urls = ["postgres://u:s3cret@[::1]/d", "postgres://u@localhost/d"]\n'
    )
    del environment["DATABASE_URL"]

    status, shown, errors = run(
        CONFIG,
        environment,
        CATALOGUE_CONFIG=str(path),
        PORT="5000",
        DATABASE_URL_FILE=str(tmp_path / "secret"),
        CATALOGUE_LIMITS_REDIS_URL="redis://:s3cret@127.0.0.1:6379/0",
    )

    assert (status, errors) == (0, "")
    assert "s3cret" not in shown
    lines = shown.splitlines()
    assert [line.partition(" = ")[0] for line in lines] == [
        config.show_name(name) for name in config.SETTINGS
    ]
    replicas = '"user=u password=*** dbname=d host=::1, user=u dbname=d host=localhost"'
    assert [line for line in lines if not line.endswith("  # default")] == [
        "[server] port = 5000  # PORT",
        '[database] url = "user=u password=*** dbname=d host=127.0.0.1"  # DATABASE_URL_FILE',
        f"[database] replica_urls = {replicas}  # {path}",
        '[limits] redis_url = "***"  # CATALOGUE_LIMITS_REDIS_URL',
        f'[operations] token = "***"  # {path}',
    ]


def test_config_refuses_what_a_start_refuses(environment: Environment) -> None:
    """Also what the values mean together; the database is not asked."""
    environment["DATABASE_URL"] = "postgresql://u@db.example/d"
    environment["CATALOGUE_DATABASE_REQUIRE_TLS"] = "true"

    status, _, error = run_here(environment, "config")

    assert (status, error.count("\n")) == (1, 1)
    assert error.startswith("Error: the password of the database may cross a network without TLS")


@pytest.mark.parametrize("command", [SERVE, GUNICORN], ids=["serve", "gunicorn"])
def test_a_broken_query_stops_the_start(
    environment: Environment, checkout: Path, command: list[str]
) -> None:
    """The message has file and line, before the service accepts a request."""
    file = checkout / "queries" / "movies.sql"
    file.write_text(file.read_text().replace("select m.id,", "select m.ids,", 1))
    line = 1 + next(n for n, text in enumerate(file.read_text().split("\n")) if "m.ids" in text)

    status, out, err = run(command, environment, CATALOGUE_CONFIG=str(checkout / "config.toml"))

    assert status != 0
    assert f"queries/movies.sql:{line}: column m.ids does not exist" in (
        err if command == SERVE else out
    )
    assert "Traceback" not in out + err
    assert command == SERVE or [json.loads(line) for line in out.splitlines()]


def test_the_commands_of_the_procfile_work(environment: Environment) -> None:
    """`release:` migrates; `web:` starts WEB_CONCURRENCY workers, and SIGTERM ends them cleanly.

    Their request ids differ. However many there are, one warning says that anyone can write.
    """
    procfile = dict(
        line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines() if line
    )
    environment |= {"PATH": f"{BIN}{os.pathsep}{environment['PATH']}", "WEB_CONCURRENCY": "2"}

    status, _, err = run(["bash", "-c", procfile["release"]], environment)
    with serving(["bash", "-c", procfile["web"]], environment) as (base, process):
        wait_until(lambda: len(find_processes(base)) == 2)
        process.terminate()
        out, gunicorn_err = process.communicate(timeout=60)

    events = [json.loads(line)["event"] for line in out.splitlines()]  # gunicorn's are JSON, too
    assert (status, "nothing to do" in err) == (0, True)
    assert events.count("anyone can write") == 1
    # All addresses, unless HOST says otherwise.
    assert any(event.startswith("Listening at: http://0.0.0.0:") for event in events)
    assert sum(event.startswith("Booting worker") for event in events) == 2
    assert (process.returncode, gunicorn_err) == (0, "")


def test_queries_explain_shows_a_plan(environment: Environment, execute: Execute) -> None:
    """With the parameters and settings that the service sends; what `--analyze` runs is undone."""
    add_movies(execute, "Moana")
    parameter = 'deletions=[{"id": 1}]'

    status, out, _ = run_here(
        environment, "queries", "explain", "delete_movies", "--analyze", "--param", parameter
    )

    assert status == 0
    assert re.search(r"Delete on movies.*\(actual .*rows=1", out)
    assert execute("select title from movies") == [("Moana",)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get_movis"], "no query is called get_movis: expected one of get_changes, "),
        (["get_movies", "--param", "id=1"], "--param id: get_movies takes ids"),
        (["get_movies", "--param", "ids=x"], "get_movies: malformed array literal"),
    ],
)
def test_queries_explain_refuses_what_it_cannot_explain(
    environment: Environment, arguments: list[str], message: str
) -> None:
    """The reason is one line."""
    status, _, err = run_here(environment, "queries", "explain", *arguments)

    assert status in (1, 2)
    assert message in err
    assert "Traceback" not in err


def test_migrate_and_its_commands(environment: Environment, checkout: Path) -> None:
    """The default is the newest migration; status, down, new and sql work."""
    environment["CATALOGUE_CONFIG"] = str(checkout / "config.toml")

    down = run_here(environment, "migrate", "down")
    pending = run_here(environment, "migrate", "status")
    new = run_here(environment, "migrate", "new", "add_nothing")
    up = run_here(environment, "migrate")
    sql = run_here(environment, "migrate", "sql")

    assert [status for status, *_ in (down, pending, new, up, sql)] == [0] * 5
    assert "pending" in pending[1]
    assert Path(new[1].strip()).exists()
    assert "add_nothing" in up[2]
    assert "create table movies" in sql[1]


def test_a_new_migration_copies_a_function(
    environment: Environment, checkout: Path, execute: Execute
) -> None:
    """Up and down have its present text, to edit up; without an edit, they change nothing."""
    environment["CATALOGUE_CONFIG"] = str(checkout / "config.toml")
    name = "movie_matches(movies,jsonb)"
    make = "create or replace function movie_matches(m movies, filter jsonb)"
    text = f"select pg_get_functiondef('{name}'::regprocedure)"
    before = execute(text)

    _, path, _ = run_here(environment, "migrate", "new", "add_a_filter", "--function", name)
    unknown = run_here(environment, "migrate", "new", "fail", "--function", "nothing()")

    _, up, down = re.split("^-- migrate:.*\n", Path(path.strip()).read_text(), flags=re.MULTILINE)
    assert up.lower().startswith(make)
    assert up.count("\n  AND (") == 15  # a line for each condition
    assert up.strip() == down.strip()
    for command in ("migrate", "migrate down"):
        assert run_here(environment, *command.split())[0] == 0
        assert execute(text) == before
    assert unknown[0] == 1
    assert 'function "nothing()" does not exist' in unknown[2]
