"""The commands of docs/operators/alerts.md that an operator runs when an alert fires."""

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping

from drills.service import ROOT

HANDBOOK = ROOT / "docs" / "operators" / "alerts.md"
COMMAND_TIMEOUT_S = 30.0
# Commands that change nothing; the drill itself ends the fault.
LOOKS = re.compile(r"(curl|dmesg|grep|ls|ps|psql|python -m service queries|ss)\b")
SQL = re.compile(r"(select|show)\b(?!.*pg_terminate_backend)")
# Other failures are allowed: the fault may be why a command fails.
MISTAKES = re.compile(r"ERROR: |not found|syntax error|unknown|invalid|unrecognized|cannot access")
MAY_SHOW_NOTHING = "dmesg"


def list_commands(alert: str) -> list[str]:
    """Return the commands of an alert's section in their order; SQL is for psql."""
    section = HANDBOOK.read_text().split(f"\n### {alert}\n")[1].split("\n##")[0]
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", section)]
    psql = 'psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -c '
    return [
        psql + shlex.quote(span) if SQL.match(span) else span
        for span in spans
        if SQL.match(span) or LOOKS.match(span)
    ]


def run_commands(
    alert: str, names: Mapping[str, object], environment: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Run the commands; yield each with its output, or with "" if it was itself mistaken.

    `names`: values for the words that the handbook writes in capitals, such as PORT.
    """
    pattern = re.compile(rf"\b({'|'.join(names)})\b")
    for command in list_commands(alert):
        filled = pattern.sub(lambda found: str(names[found[1]]), command)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", filled],  # noqa: S607 - as an operator runs it
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        output = done.stdout.strip()
        is_wrong = done.returncode != 0 and MISTAKES.search(output)
        if not output and command.startswith(MAY_SHOW_NOTHING):
            output = "nothing"
        yield filled, "" if is_wrong else output
