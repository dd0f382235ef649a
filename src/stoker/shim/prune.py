"""Images that we pulled: which of them are removed, by age and when the disk gets full. Never one that is in use, and
never one that somebody else brought."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import structlog

from stoker.core.errors import Conflict, NotFound, Unavailable
from stoker.shim import image
from stoker.shim.engine import Engine, in_path
from stoker.shim.ledger import Ledger
from stoker.shim.limits import IMAGE_UNUSED_S, IMAGES_FREE_BYTES, IMAGES_FREE_SHARE

log = structlog.get_logger()


@dataclass(frozen=True)
class Disk:
    """Where the images lie."""

    free_bytes: int
    least_bytes: int


def to_prune(
    used_at: Mapping[str, float], sizes: Mapping[str, int], in_use: Collection[str], disk: Disk, now: float
) -> list[str]:
    """Those that were not used for long, and then, while there is too little room, the ones not used for longest.

    `sizes` are of those that are there. What a removal frees may be less, since layers are shared: the next look goes
    on.
    """
    free = [id for id in sorted(used_at, key=lambda id: used_at[id]) if id in sizes and id not in in_use]
    chosen = [id for id in free if now - used_at[id] > IMAGE_UNUSED_S]
    left_bytes = disk.free_bytes + sum(sizes[id] for id in chosen)
    for id in free[len(chosen) :]:
        if left_bytes >= disk.least_bytes:
            break
        chosen.append(id)
        left_bytes += sizes[id]
    return chosen


class Images:
    """Those that we pulled, and when each was used last; `now` is the host's clock, as they outlive its boots."""

    def __init__(self, engine: Engine, ledger: Ledger, now: Callable[[], float]) -> None:
        self._engine, self._ledger, self._now = engine, ledger, now
        self._used_at = {id: float(at) for id, at in ledger.read()}
        self._held: dict[UUID, str] = {}
        self.names: Callable[[], Iterable[str]] = tuple
        """Of the images that tasks want which have not ended."""

    def pulled(self, id: str) -> None:
        self._note(id)

    def used(self, task: UUID, id: str) -> None:
        self._held[task] = id
        if id in self._used_at:
            self._note(id)

    def left(self, task: UUID) -> None:
        id = self._held.pop(task, None)
        if id in self._used_at:
            self._note(id)

    def _note(self, id: str) -> None:
        self._used_at[id] = self._now()
        # What cannot be noted on a full disk is only removed too early, or never.
        with suppress(Unavailable, OSError):
            self._ledger.append([(id, self._used_at[id])])

    async def prune(self) -> list[str]:
        """What was removed."""
        if not self._used_at:
            return []
        there = {one["Id"]: int(one["Size"]) for one in await self._engine.ask("GET", "/images/json")}
        chosen = to_prune(self._used_at, there, await self._in_use(), await self._disk(), self._now())
        removed = [id for id in chosen if await self._remove(id)]
        gone = [id for id in self._used_at if id not in there or id in removed]
        for id in gone:
            del self._used_at[id]
        if gone:
            log.info("images removed", images=removed)
            self._ledger.rewrite(self._used_at.items())
        return removed

    async def forget(self) -> None:
        """All of them go, but those that somebody uses."""
        for id in list(self._used_at):
            await self._remove(id)
            del self._used_at[id]

    async def _remove(self, id: str) -> bool:
        """Never by force: the engine knows best what is in use, but for a task that is about to begin."""
        if id not in self._held.values():
            with suppress(Conflict, NotFound):
                await self._engine.ask("DELETE", f"/images/{in_path(id)}")
                return True
        return False

    async def _in_use(self) -> set[str]:
        containers = await self._engine.ask("GET", "/containers/json", params={"all": "1"})
        in_use = {str(one["ImageID"]) for one in containers} | set(self._held.values())
        for name in set(self.names()):
            if (found := await image.find(self._engine, name)) is not None:
                in_use.add(found.id)
        return in_use

    async def _disk(self) -> Disk:
        root = (await self._engine.ask("GET", "/info")).get("DockerRootDir", "/")
        try:
            seen = os.statvfs(root)
        except OSError:
            # The engine is not on this host's disk: nothing is known of it.
            return Disk(0, 0)
        least = min(IMAGES_FREE_BYTES, int(seen.f_blocks * seen.f_frsize * IMAGES_FREE_SHARE))
        return Disk(seen.f_bavail * seen.f_frsize, least)
