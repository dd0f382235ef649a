"""A real shim with a real engine, and what tests ask of the two."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from stoker.wire.frame import decode
from stoker.wire.shim import TaskInfo
from tests.agents.shim_stage import SERVE, Stage, prepared
from tests.hosts.engine import Engine


class Yard(Stage):
    """A shim whose tasks run in containers."""

    engine: Engine

    async def box(self, image: str, *commands: str, **more: Any) -> TaskInfo:
        """A task with its job; `job` and `order` say more of them, the rest of the container."""
        id, job, order = str(uuid4()), more.pop("job", {}), more.pop("order", {})
        plain: dict[str, Any] = {"id": id, "runtime": "docker", "container": {"image": image} | more}
        return await self.submit(**plain | order, job=self.job(order.get("id", id), *commands, start=True, **job))

    async def over(self, task: TaskInfo) -> TaskInfo:
        """Once its commands have ended, or it has without them."""
        return await self.reaches(task.id, lambda one: one.result is not None or one.state == "terminated")

    async def run_box(self, image: str, *commands: str, **more: Any) -> tuple[int, str]:
        """How the commands ended, and what they printed. Nothing of it stays."""
        task = await self.over(await self.box(image, *commands, **more))
        assert task.result is not None, task
        assert task.result.failure is None, task.result
        text = await self.text(task.id)
        await self.clear_task(task.id)
        return task.result.exit_code, text

    async def clear_task(self, id: UUID) -> TaskInfo:
        task = await self.terminate(id)
        assert (await self.remove(id)).status == 204
        return task

    async def text(self, id: UUID) -> str:
        frames = b""
        while True:
            told = await self.ask("GET", f"/tasks/{id}/log?offset={len(frames)}")
            assert told.status == 200, told.body
            if not told.body:
                return b"".join(frame.data for frame in decode(frames)).decode()
            frames += told.body

    def containers(self) -> list[str]:
        """Of this shim, as the engine knows them."""
        home = (self.home / "id").read_text().strip()
        return [one["Id"] for one in self.engine.containers() if one["Labels"].get("io.stoker.home") == home]

    def box_of(self, id: UUID) -> Path:
        return self.directory(id) / "box"


@asynccontextmanager
async def yard(directory: Path, engine: Engine, bundles: Path, script: str = SERVE) -> AsyncIterator[Yard]:
    """At the end of the block nothing is left of it. `bundles` is where one is, so that not each test makes it."""
    os.environ["DOCKER_HOST"] = engine.host
    made = prepared(directory, script)
    made.__class__ = Yard
    assert isinstance(made, Yard)
    made.engine = engine
    (made.home / "bundle").symlink_to(bundles / "bundle")
    try:
        await made.start()
        yield made
    finally:
        made.clear()
        del os.environ["DOCKER_HOST"]
        if engine.answers():
            for id in made.containers() if (made.home / "id").exists() else ():
                engine.ask("DELETE", f"/containers/{id}?force=1&v=1")
