"""The container runtime: what each hook of a task's start does and undoes with a container engine.

Theory of operation. A container has a name that follows from its task, so the engine itself refuses a second one, and
what a crash left behind is found again: one that was created is started, one that runs is watched, one that has ended
is asked how. Its first process is our runner, whose box (directory, socket, result, log) lies on our disk: how the
commands ended is read there, as for a process, also when the engine is away. The engine is asked only whether the
container lives; it says so by itself (`engine_watch.py`).

Every method may be repeated after a crash.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from stoker.core.errors import Broken, NotFound, StokerError, Unavailable
from stoker.core.machine import Event
from stoker.core.reason import JobReason
from stoker.core.shim_task import (
    DevicesTaken,
    DirectoriesMade,
    Exited,
    Hook,
    HookDone,
    ImageMissing,
    ImageReady,
    NetworkReady,
    Port,
    PullProgressed,
    S,
    Started,
    TerminateAsked,
    VolumesMounted,
)
from stoker.runner.place import Place, write_file
from stoker.shim import container, image, runner
from stoker.shim.container import TASK, Bind, Plan, name_of, wanted
from stoker.shim.containers import Containers
from stoker.shim.disk import explained
from stoker.shim.home import SOCKET
from stoker.shim.image import Image
from stoker.shim.limits import (
    KILL_MARGIN_S,
    KILLED_S,
    PULL_QUIET_S,
    PULL_SHOWN_S,
    RUNNER_LEAVES_S,
    RUNNER_UP_S,
    UP_LOOK_S,
)
from stoker.shim.nudge import NAME as NUDGE
from stoker.shim.nudge import Nudge
from stoker.shim.process import Host, Noted
from stoker.shim.shelf import Record
from stoker.shim.vessel import Ended, Vessel
from stoker.shim.volume import Owner
from stoker.shim.written import Written
from stoker.wire.runner import Assignment, JobOrder, Stop
from stoker.wire.shim import Network


class Docker(Written):
    """One task's container: its runner, and what that wrote down."""

    def __init__(
        self,
        record: Record,
        host: Host,
        containers: Containers,
        *,
        news: Callable[[], None],
        looked: Callable[[], None],
        say: Callable[[Event], None],
        job: JobOrder | None = None,
    ) -> None:
        """`looked`: its runner says that there is something to look at. `say`: something has happened meanwhile."""
        self._id, self._order, self._socket = record.id, record.order, record.socket
        self._ports, self._owner = record.task.ports, Owner(record.uid, record.gid)
        self._host, self._containers, self._engine = host, containers, containers.engine
        self._news, self._looked, self._say, self._job = news, looked, say, job
        self._box = host.home.box(record.id)
        super().__init__(Place(self._box), host.in_thread)
        started = record.task.state is S.RUNNING
        self._vessel = Vessel(self._engine, name_of(containers.home_id, record.id), started=started)
        self._image: Image | None = None
        self._nudge: Nudge | None = None
        self._asking: asyncio.Task[None] | None = None

    # What it looks like from outside.

    @property
    def gone(self) -> bool:
        return not self._vessel.running

    @property
    def left(self) -> bool:
        """There was a container, and it has ended."""
        return self._vessel.ended is not None

    async def find(self) -> Started | None:
        """After a restart: the container, if it was started. While the engine is away that is not known."""
        self.look()
        vessel = self._vessel
        try:
            await vessel.look()
        except Unavailable:
            vessel.running = vessel.started
        if vessel.running:
            self._attend()
        return Started(vessel.id) if vessel.id and (vessel.running or vessel.ended) else None

    def detach(self) -> None:
        self._containers.watch.forget(self._id)
        if self._asking is not None:
            self._asking.cancel()
        if self._nudge is not None:
            self._nudge.close()
            self._nudge = None

    async def ended(self) -> Exited | TerminateAsked:
        """What the end of the container means. The word of its runner counts, if there is one."""
        self.look()
        self.look_at_log()
        if self.result is not None:
            return await self.exited(self.result)
        ended, words = self._vessel.ended or Ended(), await self._vessel.last_words()
        message = f"{ended.sentence}\n{words}" if words else ended.sentence
        if ended.oom:
            return Exited(ended.exit_code or 137, message, oom=True)
        return TerminateAsked(0.0, JobReason.EXECUTOR_ERROR, message)

    # Hooks.

    async def perform(self, hook: Hook, gpu_ids: Sequence[str], noted: Noted) -> HookDone:
        match hook:
            case Hook.DIRECTORIES:
                return DirectoriesMade()
            case Hook.VOLUMES:
                if self._order.mounts:
                    # What is mounted outlives us: whoever finds the record has to know that there may be something.
                    await noted(lambda: 0)
                    await self._host.in_thread(self._take_volumes)
                return VolumesMounted()
            case Hook.DEVICES:
                return DevicesTaken(self._host.devices.take(self._id, self._order.gpu_indices))
            case Hook.IMAGE:
                await self._bring_image(noted)
                return ImageReady()
            case Hook.NETWORK:
                self._ports = self._take_ports()
                return NetworkReady(self._ports)
            case Hook.CONTAINER:
                return Started(await self._start(gpu_ids, noted))

    async def undo(self, hook: Hook, grace_s: float, fence: int) -> None:
        match hook:
            case Hook.CONTAINER:
                await self._stop(grace_s, fence)
            case Hook.NETWORK:
                self._containers.ports.release(self._id)
            case Hook.IMAGE:
                self._containers.images.left(self._id)
            case Hook.DEVICES:
                self._host.devices.release(self._id)
            case Hook.DIRECTORIES:
                await self._host.in_thread(self._host.shelf.clear_work, self._id)
            case Hook.VOLUMES:
                if self._order.mounts:
                    detach_s = self._order.detach_s
                    await self._host.in_thread(self._host.volumes.release, self._id, self._order.mounts, detach_s)

    def _take_volumes(self) -> None:
        with explained("the volumes of a task"):
            self._host.volumes.take(self._id, self._order.mounts, self._owner)

    async def _bring_image(self, noted: Noted) -> None:
        order = wanted(self._order)
        self._image = await image.find(self._engine, order.image)
        if self._image is None:
            # What a pull takes is seen by people: they have to know that it began.
            await noted(lambda: 0)
            self._say(ImageMissing())
            await image.pull(
                self._engine, order.image, order.registry_auth, Throttled(self._say),
                within_s=order.pull_s, quiet_s=PULL_QUIET_S,
            )  # fmt: skip
            self._image = await image.find(self._engine, order.image)
            if self._image is None:
                raise Broken(f"The image {order.image} was pulled, and is not there.", code="pull")
            self._containers.images.pulled(self._image.id)
        self._containers.images.used(self._id, self._image.id)

    def _take_ports(self) -> tuple[Port, ...]:
        order = wanted(self._order)
        if order.network is Network.HOST:
            return tuple(Port(port, port) for port in dict.fromkeys(order.ports))
        return self._containers.ports.take(self._id, order.ports)

    async def _start(self, gpu_ids: Sequence[str], noted: Noted) -> str:
        """Unless there is or was one: the commands of a task never run twice."""
        vessel = self._vessel
        if not await self._made():
            plan = await self._plan()
            await noted(partial(self._write_assignment, gpu_ids, plan.image))
            await vessel.make(container.body(plan))
        self._attend()
        if not vessel.running and vessel.ended is None:
            await vessel.start()
            # It may have ended before we said that we care.
            self._ask()
        self._job = None
        return vessel.id

    async def _made(self) -> bool:
        """Whether there is one. One that never began and whose agents were replaced meanwhile is made anew: the tree
        that it would mount has gone with them."""
        vessel = self._vessel
        there = await vessel.look()
        if not there or vessel.running or vessel.ended is not None:
            return there
        tree = vessel.sources.get(str(container.BUNDLE), "")
        return await self._host.in_thread(os.path.exists, tree) or await vessel.discard()

    async def _plan(self) -> Plan:
        order = wanted(self._order)
        if self._image is None:
            # We were started anew since it came.
            self._image = await image.find(self._engine, order.image)
        if self._image is None:
            raise NotFound(f"The image {order.image} is not here any more.", code="no_image")
        bundle = await self._host.in_thread(self._containers.bundle)
        indices = set(self._order.gpu_indices)
        return Plan(
            id=self._id,
            home_id=self._containers.home_id,
            order=self._order,
            image=self._image,
            command=(*bundle.command(container.BUNDLE, "stoker.runner"), "--directory", str(TASK)),
            bundle=bundle.root,
            box=self._box,
            ports=self._ports,
            binds=[
                # A relative one is below the job's own directory.
                Bind(one.source, str(TASK / "work" / one.inside), one.read_only)
                for one in self._host.volumes.mounted(self._order)
            ],
            gpus=[gpu for gpu in self._host.devices.gpus if gpu.index in indices],
            engine_socket=str(self._engine.socket),
        )

    def _write_assignment(self, gpu_ids: Sequence[str], found: Image) -> int:
        assignment = Assignment(
            id=self._id,
            project_id=self._order.project_id,
            token=self._order.token,
            socket=str(TASK / SOCKET),
            notify=str(TASK / NUDGE),
            gpu_ids=tuple(gpu_ids),
            gpu_indices=self._order.gpu_indices,
            stop_after_s=self._order.stop_after_s,
            job=self._job,
            box=container.box_of(wanted(self._order), found),
        )
        with explained(f"task {self._id}"):
            write_file(self._place.assignment, assignment.model_dump_json().encode(), durable=False)
            link = Path(self._socket)
            if link != self._box / SOCKET:
                link.unlink(missing_ok=True)
                link.symlink_to(self._box / SOCKET)
        return 0

    # The container.

    def _attend(self) -> None:
        """From now on we hear what its runner and its engine say."""
        self._containers.watch.follow(self._id, self._ask)
        if self._nudge is None:
            self._nudge = Nudge(self._box, self._looked)

    def _ask(self) -> None:
        """Whether it still runs; one question at a time."""
        if self._vessel.running and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask_once())

    async def _ask_once(self) -> None:
        try:
            await self._vessel.look()
        except StokerError:
            # Asked again when the engine is back.
            return
        if self.left:
            self.look()
            self._stirred.set()
            self._news()

    async def _stop(self, grace_s: float, fence: int) -> None:
        self.look()
        order = Stop(fence=fence, grace_s=grace_s)
        # Before the engine is asked for anything: it may be away.
        asked = self._vessel.running and self.result is None and await self._ask_to_stop(order)
        await self._vessel.look()
        if self._vessel.running:
            self._attend()
            await self._end(order, asked=asked)
        self.look()
        await self._vessel.remove()
        self.detach()
        with suppress(FileNotFoundError):
            os.unlink(self._socket)

    async def _ask_to_stop(self, order: Stop) -> bool:
        return await runner.ask_to_stop(self._socket, self._order.token, order)

    async def _end(self, order: Stop, *, asked: bool) -> None:
        deadline = asyncio.get_running_loop().time() + RUNNER_UP_S
        while self._vessel.running and self.result is None and not asked:
            # It is on its way up: what is sent to the first process of a container before it listens is lost.
            if asyncio.get_running_loop().time() > deadline:
                # It has heard later orders than ours, or hangs: a signal has no fence.
                await self._vessel.signal("SIGTERM")
                break
            await self._result_within(UP_LOOK_S)
            asked = await self._ask_to_stop(order)
        await self._result_within((order.grace_s or 0.0) + KILL_MARGIN_S)
        for number, within_s in (("SIGTERM", RUNNER_LEAVES_S), ("SIGKILL", KILLED_S)):
            if not self._vessel.running:
                return
            await self._vessel.signal(number)
            await self._leaves(within_s)
        if self._vessel.running:
            raise Broken("Its container was killed and does not go away.", code="unkillable")

    async def _leaves(self, within_s: float) -> None:
        """The engine says when it has; we ask too, since it may have said so before we listened."""
        deadline = asyncio.get_running_loop().time() + within_s
        while self._vessel.running and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            self._stirred.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, 0.5)):
                    await self._stirred.wait()
            if self._vessel.running:
                await self._vessel.look()


class Throttled:
    """An engine says hundreds of times a second how far it has come."""

    def __init__(self, say: Callable[[Event], None]) -> None:
        self._say, self._said_at = say, float("-inf")

    def __call__(self, pulled_bytes: int, total_bytes: int | None) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._said_at >= PULL_SHOWN_S:
            self._said_at = now
            self._say(PullProgressed(pulled_bytes, total_bytes))
