"""One container as its engine has it: made, started, signalled, asked, removed. Which task it is for is not known here.

It is found by its name, which its engine gives to no second one, so each of these may be repeated.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from stoker.core.errors import Broken, Conflict, NotFound, StokerError
from stoker.shim.engine import Engine
from stoker.shim.limits import KILLED_S, TAIL_BYTES, TAIL_LINES
from stoker.shim.port import PortTaken

_ENDED: Final = ("exited", "dead")
_REMOVED_LOOK_S: Final = 0.05
_PORT_TAKEN: Final = ("port is already allocated", "address already in use")
_VANISHED: Final = "Its container is not there any more, and nobody knows how its commands ended."


@dataclass(frozen=True)
class Ended:
    """How a container ended, as its engine says it; an exit code of None: it was gone before it said so."""

    exit_code: int | None = None
    oom: bool = False
    error: str = ""

    @property
    def sentence(self) -> str:
        if self.exit_code is None:
            return _VANISHED
        what = "for memory " if self.oom else ""
        engine = f" The engine says: {self.error.rstrip('.')}." if self.error else ""
        return f"Its container ended {what}(exit code {self.exit_code}) before its commands had.{engine}"


class Vessel:
    def __init__(self, engine: Engine, name: str, *, started: bool) -> None:
        """`started`: it was, as far as is noted; then one that is not there has vanished."""
        self._engine, self._name, self.started = engine, name, started
        self.id = ""
        """Nothing: as far as we know there is none."""
        self.running = False
        self.ended: Ended | None = None
        self.sources: dict[str, str] = {}
        """What of the host is mounted in it, by where it is there."""

    async def look(self) -> bool:
        """Whether it is there; how it is, is in `running` and `ended` then."""
        try:
            found: dict[str, Any] = await self._engine.ask("GET", f"/containers/{self._name}/json")
        except NotFound:
            self.id = ""
            if self.started or self.running:
                self.ended, self.running = self.ended or Ended(), False
            return False
        self.id, state = str(found["Id"]), found["State"]
        self.sources = {one["Target"]: one["Source"] for one in found["HostConfig"].get("Mounts") or ()}
        if state["Status"] in _ENDED:
            self.ended = Ended(state["ExitCode"], bool(state.get("OOMKilled")), state.get("Error") or "")
            self.running = False
        elif state["Status"] != "created":
            self.running = self.started = True
        return True

    async def make(self, body: Mapping[str, Any]) -> None:
        # Where its name is taken, an earlier try of ours made it after all.
        with suppress(Conflict):
            await self._engine.ask("POST", "/containers/create", body, params={"name": self._name})
        if not await self.look():
            raise Broken("Its container was created, and is not there.", code="container")

    async def start(self) -> None:
        try:
            await self._engine.ask("POST", f"/containers/{self._name}/start")
        except Broken as error:
            if any(said in error.sentence for said in _PORT_TAKEN):
                raise PortTaken(error.sentence) from error
            raise
        self.running = self.started = True

    async def signal(self, number: str) -> None:
        # One that has just ended hears nothing.
        with suppress(Conflict, NotFound):
            await self._engine.ask("POST", f"/containers/{self._name}/kill", params={"signal": number})

    async def remove(self) -> None:
        deadline = asyncio.get_running_loop().time() + KILLED_S
        while True:
            try:
                await self._engine.ask("DELETE", f"/containers/{self._name}", params={"force": "1", "v": "1"})
            except NotFound:
                return
            except Conflict as error:
                # Somebody else removes it just now.
                if asyncio.get_running_loop().time() > deadline:
                    raise Broken(error.sentence, code="container") from error
                await asyncio.sleep(_REMOVED_LOOK_S)
            else:
                return

    async def discard(self) -> bool:
        """Unless it was started after all. Whether it is still there."""
        with suppress(Conflict, NotFound):
            await self._engine.ask("DELETE", f"/containers/{self._name}", params={"v": "1"})
        return await self.look()

    async def last_words(self) -> str:
        """Of the container itself: of a runner that did not come up, or of what the engine tried to start."""
        with suppress(StokerError):
            params = {"stdout": "1", "stderr": "1", "tail": str(TAIL_LINES)}
            said = await self._engine.ask("GET", f"/containers/{self._name}/logs", params=params)
            return demultiplexed(said).decode(errors="replace").strip()[-TAIL_BYTES:]
        return ""


def demultiplexed(data: bytes) -> bytes:
    """Both streams in one: each piece has eight bytes before it, the last four of which are its length."""
    text = bytearray()
    while len(data) >= 8:
        end = 8 + int.from_bytes(data[4:8], "big")
        text += data[8:end]
        data = data[end:]
    return bytes(text)
