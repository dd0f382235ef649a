"""Passes on to runners that the server is there, for jobs that are to stop when it is not.

The server speaks to the shim all the time and to a runner only when it has something to say, so a job that prints
nothing would take a quiet server for one that is away. How long ago the server spoke is said with it: a shim that
was itself away has no fresh word to pass on.
"""

import asyncio
from collections.abc import Iterable
from uuid import UUID

from stoker.shim.limits import WORDS_IN_SILENCE
from stoker.shim.runner import tell
from stoker.shim.task import Task
from stoker.wire.runner import Heard


class Word:
    def __init__(self) -> None:
        self._heard_at: float | None = None
        self._told_at: dict[UUID, float] = {}
        self._telling: dict[UUID, asyncio.Task[None]] = {}

    def heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    @staticmethod
    def shortest_s(tasks: Iterable[Task]) -> float | None:
        """The least patience of all that run here."""
        return min((limit_s for task in tasks if (limit_s := task.record.order.stop_after_s)), default=None)

    def pass_on(self, tasks: Iterable[Task]) -> None:
        """Called every few seconds; nobody waits for a runner that does not answer."""
        now, there = asyncio.get_running_loop().time(), set[UUID]()
        for task in tasks:
            if (limit_s := task.record.order.stop_after_s) is not None:
                there.add(task.record.id)
                self._tell(task, limit_s, now)
        self._told_at = {id: at for id, at in self._told_at.items() if id in there}

    def _tell(self, task: Task, limit_s: float, now: float) -> None:
        id, told_at = task.record.id, self._told_at.get(task.record.id, float("-inf"))
        if self._heard_at is None or self._heard_at <= told_at or now - told_at < limit_s / WORDS_IN_SILENCE:
            return
        if id not in self._telling and task.info.socket:
            telling = asyncio.get_running_loop().create_task(self._say(task, self._heard_at))
            self._telling[id] = telling
            telling.add_done_callback(lambda _: self._telling.pop(id, None))

    async def _say(self, task: Task, heard_at: float) -> None:
        word = Heard(ago_s=max(0.0, asyncio.get_running_loop().time() - heard_at))
        if await tell(task.info.socket, task.record.order.token, "/heard", word):
            self._told_at[task.record.id] = heard_at
