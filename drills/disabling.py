"""Shows that the drills can fail: runs one against a copy of the service without one protection.

The copy is of this tree. A protection is removed by replacing text, which must be there exactly
once: otherwise the code has changed, and the replacement here has to change with it.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

IGNORED = shutil.ignore_patterns(".*", "__pycache__", "bench", "tests", "docs")


class TextNotFound(Exception):
    """A replacement does not fit the code."""


@dataclass(frozen=True)
class Protection:
    """A protection: the drill that must fail without it, and how to remove it from a file."""

    drill: str
    file: str
    text: str
    replacement: str


PROTECTIONS = {
    # A read that hit a broken connection is sent again.
    "read-retry": Protection(
        "terminated-backends",
        "service/database/statements.py",
        "            if not retry:\n",
        "            if True:\n",
    ),
    # aiopg reports a statement timeout as CancelledError, which must become a response.
    "cancelled-error": Protection(
        "locked-table",
        "service/database/statements.py",
        "                if not is_statement_timeout(error):\n                    raise\n",
        "                raise\n",
    ),
    # At the end, a process waits for requests in flight, and tells clients that connections end.
    "draining": Protection(
        "sigterm",
        "service/web/request_cycle/server.py",
        "            await self.server.drain(self._settings.shutdown_timeout)\n",
        "",
    ),
    # A process accepts fewer connections than it may open files.
    "connection-cap": Protection(
        "file-descriptors",
        "service/web/request_cycle/server.py",
        "        if self._open > self.parts.max_connections:\n",
        "        if False:\n",
    ),
    # A client whose token was verified is looked up again after 30 s.
    "known-clients-expire": Protection(
        "revoked-clients",
        "service/access/clients.py",
        "client.known_until > self._clock() and client.expires_at > time.time()\n",
        "client.expires_at > time.time()\n",
    ),
    # While Redis is away, each process limits for itself.
    "limits-in-memory": Protection(
        "limits-with-redis",
        "service/access/redis_counts.py",
        "            self._redis.lose(error)\n            return None\n",
        "            raise\n",
    ),
    # Lists wait for a part of the connections.
    "list-share": Protection(
        "expensive-lists",
        "service/app.py",
        "Statements(pool, files.queries, timeout, slow, pool.lists)",
        "Statements(pool, files.queries, timeout, slow)",
    ),
}


def copy_without(name: str, tree: Path, copy: Path) -> Protection:
    """Copy the service's tree to `copy`, without this protection; raises `TextNotFound`."""
    protection = PROTECTIONS[name]
    shutil.copytree(tree, copy, ignore=IGNORED)
    path = copy / protection.file
    before = path.read_text()
    if before.count(protection.text) != 1:
        raise TextNotFound(
            f"{protection.file}: the text of {name} is there {before.count(protection.text)} times,"
            f" expected once: {protection.text.strip()!r}"
        )
    path.write_text(before.replace(protection.text, protection.replacement))
    return protection
