"""schema.sql, the schema of a migrated database; `make schema` writes it with pg_dump."""

import re
import subprocess
import tempfile
from pathlib import Path

from service.database.embedded import find_programs, running
from service.database.migrations import runner as migrations

ROOT = Path(__file__).parents[1]
FILE = ROOT / "schema.sql"
HEAD = (
    "-- The schema that migrations/*.sql make. `make schema` writes it, and a test compares it.\n\n"
)
# Settings of the session, and what differs in each run or version of PostgreSQL.
LEFT_OUT = re.compile(
    r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*|.*\(pg_attver=.*)\n",
    re.MULTILINE,
)


def dump(url: str) -> str:
    """Return the schema of a database as schema.sql has it."""
    command = [str(find_programs() / "pg_dump"), "--schema-only", "--no-owner", "--no-acl", url]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return HEAD + re.sub(r"\n{3,}", "\n\n", LEFT_OUT.sub("", text)).strip() + "\n"


def main() -> None:
    """Write the file, from a new database."""
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "server") as url:
        migrations.upgrade(url, ROOT / "migrations", print)
        FILE.write_text(dump(url), "utf-8")


if __name__ == "__main__":
    main()
