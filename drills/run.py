"""Runs the drills: `python -m drills.run --help`."""

import asyncio
import signal
import sys
import time
import traceback

import click

from drills import backups, upgrades  # noqa: F401 - importing them registers their drills
from drills.lab import DRILLS, Checks, Lab, only, open_lab
from drills.processes import NotRun


def run_drill(lab: Lab, name: str) -> bool:
    """Run one drill, and return whether it did not fail.

    Processes that it leaves are stopped at the end of the run.
    """
    run, checks, started = DRILLS[name], Checks(), time.monotonic()
    click.echo(f"{name}: {str(run.__doc__).splitlines()[0]}", err=True)
    verdict = "pass"
    try:
        asyncio.run(run(lab, checks))
    except NotRun as reason:
        checks.note(f"not run: {reason}")
        verdict = "not run"
    except Exception as error:  # noqa: BLE001 - the other drills still run
        traceback.print_exc()
        checks.require(None, f"the drill broke off: {error!r}")
    if checks.failures:
        verdict = "FAIL"
    seconds = time.monotonic() - started
    click.echo(f"{name:<20} {verdict:<8} {seconds:>4.0f} s  {'; '.join(checks.figures)}")
    for failure in checks.failures:
        click.echo(f"{'':<20} !        {failure}")
    return not checks.failures


@click.command()
@only(DRILLS)
def main(names: list[str]) -> None:
    """Run the service with real processes and break it; exit status 1 if a drill fails."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: stop all processes
    with open_lab() as lab:
        results = [run_drill(lab, name) for name in names]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main(prog_name="python -m drills.run")
