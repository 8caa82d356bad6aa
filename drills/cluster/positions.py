"""Clients that send positions: what a write has acknowledged, a later read must show."""

import asyncio
import random
from dataclasses import dataclass, field

from drills.client import Connection
from drills.load import OK, POSITION, RETRY_S, Known, Load

NOT_FOUND = 404
RECENT = 200  # movies that readers choose from


@dataclass
class PositionedLoad(Load):
    """Each writer reads its movie after each write; every other reader reads movies of writers.

    Both send the position of the movie's last acknowledged write.
    """

    positioned: int = 0  # reads that were answered
    stale: list[str] = field(default_factory=list)

    async def _read(self, number: int, stop: asyncio.Event) -> None:
        if number % 2:
            await super()._read(number, stop)
            return
        async with Connection(self.url) as connection:
            while not stop.is_set():
                recent = list(self.known.values())[-RECENT:]
                if recent:
                    await self._read_back(connection, random.choice(recent))  # noqa: S311 - no secret
                await asyncio.sleep(self.pause_s)

    async def _create(
        self, connection: Connection, name: str, stop: asyncio.Event, *, has_key: bool
    ) -> Known | None:
        known = await super()._create(connection, name, stop, has_key=has_key)
        if known:
            await self._read_back(connection, known)
        return known

    async def _change(self, connection: Connection, known: Known, title: str) -> None:
        await super()._change(connection, known, title)
        await self._read_back(connection, known)

    async def _delete(self, connection: Connection, known: Known) -> None:
        await super()._delete(connection, known)
        await self._read_back(connection, known)

    async def _read_back(self, connection: Connection, known: Known) -> None:
        """Read a movie with its position; an older state than the acknowledged one is stale."""
        number, version = known.movie["id"], known.movie["version"]
        position, was_deleted = known.position, known.is_deleted
        if not position:
            return
        response = await self.send(
            connection, "positioned", "GET", f"/v1/movies/{number}", headers={POSITION: position}
        )
        if not response or response.status not in (OK, NOT_FOUND):
            await asyncio.sleep(RETRY_S)
            return
        self.positioned += 1
        if response.status == NOT_FOUND:
            seen = 0
            is_stale = not (known.is_deleted or known.may_be_deleted)
        else:
            seen = response.json()["movie"]["version"]
            is_stale = was_deleted or seen < version
        if is_stale:
            expected = "deleted" if was_deleted else f"version {version}"
            self.stale.append(
                f"movie {number} at position {position}: {expected}, read version {seen}"
            )
