"""Runs the drills: `python -m drills.run --help`."""

import asyncio
import signal
import sys
import time
import traceback

import click

# Importing them registers their drills.
from drills import (  # noqa: F401
    backups,
    database_faults,
    hostile_clients,
    process_faults,
    proxies,
    upgrades,
)
from drills.lab import DRILLS, Checks, Drill, Lab, open_lab
from drills.processes import NotRun
from drills.report import FAIL, NOT_RUN, PASS, Row, format_row, list_versions, write_document


def run_drill(lab: Lab, drill: Drill) -> Row:
    """Run one drill; processes that it leaves are stopped at the end of the run."""
    checks, started = Checks(), time.monotonic()
    click.echo(f"{drill.name}: {drill.done}", err=True)
    try:
        asyncio.run(drill.run(lab, checks))
        verdict = FAIL if checks.failures else PASS
    except NotRun as reason:
        checks.note(f"not run: {reason}")
        verdict = NOT_RUN
    except Exception as error:  # noqa: BLE001 - the other drills still run
        traceback.print_exc()
        checks.require(None, f"the drill broke off: {error!r}")
        verdict = FAIL
    row = Row(drill, verdict, checks.figures, checks.failures, time.monotonic() - started)
    click.echo(format_row(row))
    return row


def choose(_: object, __: object, names: str) -> list[Drill]:
    """Return the drills of these names, separated by commas; all of them for ""."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in DRILLS]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(DRILLS)}")
    return [DRILLS[name] for name in chosen or DRILLS]


@click.command()
@click.option(
    "--only", "drills", default="", callback=choose, help=f"Some of: {', '.join(DRILLS)}."
)
def main(drills: list[Drill]) -> None:
    """Break the service in every known way; exit status 1 if a drill fails."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: stop all processes
    with open_lab() as lab:
        versions = list_versions(lab.postgres.execute("postgres", "show server_version")[0][0])
        rows = [run_drill(lab, drill) for drill in drills]
    if len(drills) == len(DRILLS):
        write_document(rows, versions)
    sys.exit(1 if any(row.verdict == FAIL for row in rows) else 0)


if __name__ == "__main__":
    main(prog_name="python -m drills.run")
