"""Tests the commands of operators: their output, exit statuses and interruptions."""

import gzip
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from conftest import MOANA
from processes import run
from support import (
    SERVICE,
    Environment,
    Execute,
    add_movies,
    hold,
    run_here,
    started,
    wait_until,
)

LINE = json.dumps(MOANA).encode() + b"\n"
MAPS = ("--map", "year=year_", "--map", "runtime=length", "--map", "genres=tags")
NOWHERE = "postgresql://nobody@127.0.0.1:9/nothing"
COUNT = "select count(*) from movies"


@contextmanager
def half_way(environment: Environment, rejects: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start an import that has sent rows, rejected one, and waits for more."""
    words = ("import", "-", "--format", "ndjson", "--rejects", str(rejects), "--allow-rejects")
    with started(environment, *words) as process:
        stdin = pipe(process.stdin)
        stdin.write(b"{\n" + LINE * 40_000)  # four chunks; the third is sent after the first
        stdin.flush()
        wait_until(lambda: list(rejects.parent.glob(".rejects.*.part")))
        yield process


def pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """Return a stream of a process, which must exist."""
    assert stream
    return stream


WORDS = "select word from search_words order by word"


def test_an_import_adds_the_words_of_its_rows_at_its_end(
    environment: Environment, execute: Execute, tmp_path: Path
) -> None:
    """Each once, and only the missing ones; a dry run adds none."""
    path = tmp_path / "movies.ndjson"
    path.write_bytes(LINE + json.dumps({**MOANA, "title": "Léon"}).encode() + b"\n")

    run_here(environment, "import", str(path), "--dry-run")
    dry = execute(WORDS)
    with half_way(environment, tmp_path / "rejects") as process:
        sent = execute(WORDS)
        process.communicate()
    imported = execute(WORDS)
    run_here(environment, "import", str(path))

    assert (dry, sent, imported) == ([], [], [("moana",)])
    assert execute(WORDS) == [("leon",), ("moana",)]


def test_an_import_and_a_create_with_the_same_new_word_do_not_wait(
    database: str, execute: Execute
) -> None:
    """A word may be there twice."""
    add_words = "select add_search_words($$ select 'moana'::tsvector $$)"
    with hold(database, add_words) as other:
        execute(f"set lock_timeout = '1s'; {add_words}")
        add_movies(execute, "Moana")
        other.commit()

    assert execute(WORDS) == [("moana",), ("moana",)]


def test_import_names_the_file_of_rejects(
    environment: Environment, execute: Execute, tmp_path: Path
) -> None:
    """The status is 1, or 0 with --allow-rejects; without a terminal, there is no bar."""
    path = tmp_path / "movies.ndjson"
    path.write_bytes(LINE * 1200 + b"{\n")

    dry, _, foreseen = run_here(environment, "import", str(path), "--dry-run")
    status, _, err = run_here(environment, "import", str(path))
    before = execute(COUNT)
    allowed, out, summary = run_here(environment, "import", str(path), "--allow-rejects")

    place = rf"; the rejected rows are in {path}\.rejects\.ndjson\n"
    speed = r" and rejected 1 of 1,201 rows in \d+\.\d s \([\d,]+ rows/s\)" + place
    refused = "imported: fix these rows, or pass --allow-rejects\n"
    assert (dry, status, before, allowed, out) == (1, 1, [(0,)], 0, "")
    assert re.fullmatch(f"would import 0{speed}Error: nothing would be {refused}", foreseen)
    assert re.fullmatch(f"imported 0{speed}Error: nothing was {refused}", err)
    assert re.fullmatch(f"imported 1,200{speed}", summary)
    assert json.loads(Path(f"{path}.rejects.ndjson").read_text())["line"] == 1201
    assert execute(COUNT) == [(1200,)]


def test_a_foreign_csv(environment: Environment, execute: Execute, tmp_path: Path) -> None:
    """The import uses --map and --where, after a dry run."""
    path = tmp_path / "titles.csv"
    path.write_text("type,title,year_,length,tags\nMovie,A,1999,90 min,a\nShow,B,1999,1,b\n")
    words = (*MAPS, "--where", "type=Movie")

    _, _, dry = run_here(environment, "import", str(path), *words, "--dry-run")
    before = execute(COUNT)
    status, _, err = run_here(environment, "import", str(path), *words)

    assert dry.startswith("would import 1, left out 1 and rejected 0 of 2 rows in ")
    assert before == [(0,)]
    assert (status, execute(COUNT)) == (0, [(1,)])
    assert err.startswith("imported 1, left out 1 and rejected 0 of 2 rows in ")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["README.md", "--format", "json", "--map", "year=y"], "--map and --where are for CSV"),
        (["samples/movies.csv", "--map", "jahr=y"], "--map jahr: a movie has id, title, year"),
        (["a.csv", "--where", "x"], "expected NAME=VALUE, found 'x'"),
        (["README.md", "--format", "csv", "--rejects", "docs/../README.md"], "this is the file to"),
        (["missing.csv"], "missing.csv: cannot be read: No such file or directory"),
        (["tests", "--format", "csv"], "tests: cannot be read: Is a directory"),
    ],
)
def test_contradictions_are_refused(words: list[str], problem: str) -> None:
    """They are refused before any other work."""
    status, _, err = run_here({"DATABASE_URL": NOWHERE}, "import", *words)

    assert status in (1, 2)
    assert problem in err


def test_a_reader_that_stops_early(environment: Environment, execute: Execute) -> None:
    """`| head` ends an export without a message."""
    add_movies(execute, *["a"] * 5000)
    with started(environment, "export", "-") as process:
        pipe(process.stdout).readline()
        pipe(process.stdout).close()
        err = pipe(process.stderr).read()
        status = process.wait(60)

    assert (status, err) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("movies", [1, 5000])
def test_a_disk_that_is_full_behind_stdout(
    environment: Environment, execute: Execute, movies: int
) -> None:
    """It is one line and status 1, also if only the last flush fails."""
    add_movies(execute, *["a"] * movies)
    command = f"exec {' '.join(SERVICE)} export - >/dev/full"

    status, _, err = run(["sh", "-c", command], environment)

    assert (status, err) == (1, "Error: stdout: cannot be written: No space left on device\n")


def test_an_interrupted_import_leaves_nothing(
    environment: Environment, execute: Execute, tmp_path: Path
) -> None:
    """It says so in its last line, with status 1, and leaves no movie and no file of rejects.

    Without coverage: a KeyboardInterrupt between the lines of its lock leaves that taken for ever,
    and the next traced line waits for it.
    """
    uncovered = {k: v for k, v in environment.items() if not k.startswith("COVERAGE_")}
    with half_way(uncovered, tmp_path / "rejects") as process:
        process.terminate()
        _, err = process.communicate(timeout=60)

    *_, last = err.splitlines()  # a slow import reports its progress
    assert (process.returncode, last) == (1, b"Error: interrupted: nothing was imported")
    assert execute(COUNT) == [(0,)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("row", [b"a,1999,90,a" + 3 * (b"," + b"x" * 100_000) + b"\n", b"x"])
def test_memory_is_bounded(environment: Environment, tmp_path: Path, row: bytes) -> None:
    """For every file: also with large unknown fields, or one endless line."""
    path = tmp_path / "movies.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"title,year,runtime,genres,a,b,c\n")
        for _ in range(400):
            file.write(row * max(1, 300_000 // len(row)))
    command = [sys.executable, "-c", MEASURE, *SERVICE, "import", str(path)]
    _, out, _ = run(command, environment)

    status, kilobytes = map(int, out.split())
    assert status == (1 if row == b"x" else 0)
    assert kilobytes < 150_000


# Another process measures, because a child's peak starts with the peak of its parent.
MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
