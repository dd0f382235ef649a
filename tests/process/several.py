"""A server with several machines on this host: each a shim with a home of its own, joined as the server's own host is.

`python -m tests.process.several` is that server; `Several` is the stand that starts it.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

from stoker.core.block import AUTO
from stoker.core.fleet import Fleet
from stoker.core.ids import FleetId, InstanceId, derived
from stoker.engine.change import Change
from stoker.runner.place import Place
from stoker.server.hands import WATCH, Hands
from stoker.server.local_host import find_shim, host_id, instance_of, look
from stoker.server.main import running
from stoker.server.settings import Settings
from stoker.store import fleet as fleet_store
from stoker.store import host as host_store
from tests.process.stand import ROOT, Stand

MACHINES = "STOKER_TEST_MACHINES"


SPEC = '{"type": "fleet", "name": "several", "backends": ["local"]}'


class Joined(Hands):
    """Has no host of its own but those."""

    async def start(self) -> None:
        await super().start()
        for number in range(int(os.environ[MACHINES])):
            await self._join(self._context.settings.home / f"machine-{number}", f"127.0.0.{number + 1}")

    async def _join(self, home: Path, ip: str) -> None:
        context, engine = self._context, self._context.engine
        address, token = await find_shim(home)
        info, id = await look(address, token), await asyncio.to_thread(host_id, home)
        async with context.database.transaction() as tx:
            fleet_id = FleetId(derived(UUID(int=0), "several"))
            fleet_id, _ = await fleet_store.ensure(tx, fleet_id, "several", None, SPEC, Fleet(), engine.clock.now())
            await host_store.put(tx, InstanceId(id), host_store.Host(address, token, ip))
        await engine.commit(Change(instances=(instance_of(info, id, fleet_id, AUTO, engine.clock.now()),)))
        engine.wake("errands")
        engine.wake(WATCH)


class Several(Stand):
    def __init__(self, home: Path, machines: int) -> None:
        super().__init__(home, local=False)
        self.machines = [home / f"machine-{number}" for number in range(machines)]
        self.environ |= {MACHINES: str(machines), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

    def launch(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self.home.chmod(0o711)
        command = [sys.executable, "-m", "tests.process.several", str(self.port)]
        with open(self.home / "server.log", "ab") as log:
            self.server = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    def tasks(self) -> list[UUID]:
        return [UUID(path.name) for one in self.machines for path in (one / "tasks").glob("*-*-*-*-*")]

    def place(self, job: UUID | str) -> Place:
        return Place(self._home_of(job) / "tasks" / str(job))

    def cgroups(self, job: UUID | str) -> list[str]:
        self._shim_home = self._home_of(job)
        return super().cgroups(job)

    @property
    def shim_home(self) -> Path:
        return getattr(self, "_shim_home", self.machines[0])

    def _home_of(self, job: UUID | str) -> Path:
        return next((one for one in self.machines if (one / "tasks" / str(job)).exists()), self.machines[0])


async def main(port: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with running(Settings(Path(os.environ["STOKER_HOME"]), port=port, local=False), Joined):
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
