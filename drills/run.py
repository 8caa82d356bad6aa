"""Runs the drills: `python -m drills.run --help`."""

import asyncio
import signal
import sys
import time
import traceback
from dataclasses import replace

import click

# Importing them registers their drills.
from drills import (  # noqa: F401
    access,
    backups,
    database_faults,
    limits,
    process_faults,
    proxies,
    starvation,
)
from drills.disabling import PROTECTIONS, TextNotFound, copy_without
from drills.lab import DRILLS, ROOT, Checks, Drill, Lab, NotRun, open_lab
from drills.report import (
    FAIL,
    NOT_RUN,
    PASS,
    Row,
    list_versions,
    table,
    write_document,
    write_section,
)

DOCUMENT = ROOT / "docs" / "drills.md"


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
        checks.failures.append(f"the drill broke off: {error!r}")
        verdict = FAIL
    seconds = time.monotonic() - started
    row = Row(drill, verdict, tuple(checks.figures), tuple(checks.failures), seconds)
    click.echo("\n".join(table([row])), err=True)
    return row


def run_disabled(name: str) -> Row:
    """Run the drill of a protection against a copy of the service without it."""
    with open_lab(ROOT) as lab:
        copy = lab.folder / "tree"
        try:
            protection = copy_without(name, ROOT, copy)
        except TextNotFound as error:
            raise click.ClickException(str(error)) from error
        row = run_drill(replace(lab, tree=copy), DRILLS[protection.drill])
    click.echo(f"without {name}: {protection.drill}: {row.verdict} ({FAIL} is expected)")
    return row


def choose(names: str) -> list[Drill]:
    """Return the drills of these names, separated by commas; all of them for ""."""
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in DRILLS]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(DRILLS)}")
    return [DRILLS[name] for name in chosen or DRILLS]


@click.command()
@click.option("--only", default="", help=f"Some of: {', '.join(DRILLS)}.")
@click.option(
    "--disable",
    type=click.Choice([*PROTECTIONS, "all"]),
    help="Remove one protection, or each in turn; exit status 0 if its drill fails.",
)
def main(only: str, disable: str | None) -> None:
    """Break the service in every known way; exit status 1 if a drill fails."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: stop what was started
    if disable:
        names = list(PROTECTIONS) if disable == "all" else [disable]
        failed = {name: run_disabled(name) for name in names}
        if disable == "all":
            write_section(DOCUMENT, failed)
        sys.exit(0 if all(row.verdict == FAIL for row in failed.values()) else 1)
    drills = choose(only)
    with open_lab(ROOT) as lab:
        versions = list_versions(lab.postgres.version())
        rows = [run_drill(lab, drill) for drill in drills]
    click.echo("\n".join(table(rows)))
    if len(drills) == len(DRILLS):
        write_document(DOCUMENT, rows, versions)
    sys.exit(1 if any(row.verdict == FAIL for row in rows) else 0)


if __name__ == "__main__":
    main(prog_name="python -m drills.run")
