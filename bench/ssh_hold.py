"""The two hundred hosts of `bench/ssh.py`: agents that are played, on one host, and the server that holds them.

`python -m bench.ssh_hold agents N` and `python -m bench.ssh_hold server PLACE`.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import BaseModel

from stoker.core.sight import Way
from stoker.engine import garbage
from stoker.engine.install import Installed
from stoker.server.first_start import Keyring
from stoker.server.hands import Hands
from stoker.server.main import running
from stoker.server.settings import Settings
from stoker.store.ssh import SshHost
from stoker.wire.fleet import FleetConfiguration
from stoker.wire.shim import Changes, HostInfo

AGENTS = Path("/run/stoker-bench")
TOKEN = "token-of-an-agent-that-is-played"
INFO = HostInfo(hostname="played", cpus=4, memory_mb=8192, disk_mb=100_000, root=True, cgroups=False)


def agents(count: int) -> None:
    AGENTS.mkdir(parents=True, exist_ok=True)
    asyncio.run(_agents(count))


async def _agents(count: int) -> None:
    app = web.Application()
    app.router.add_get("/changes", _changes)
    app.router.add_get("/host", _host)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for number in range(count):
        await web.UnixSite(runner, str(AGENTS / f"{number}.sock")).start()
    await asyncio.Event().wait()


async def _changes(request: web.Request) -> web.Response:
    if request.query.get("cursor"):
        await asyncio.sleep(float(request.query["wait_s"]))
        return _said(Changes(cursor="1", complete=False, tasks=()))
    return _said(Changes(cursor="1", complete=True, tasks=()))


async def _host(request: web.Request) -> web.Response:
    return _said(INFO)


def _said(answer: BaseModel) -> web.Response:
    return web.Response(body=answer.model_dump_json(), content_type="application/json")


class Holding(Hands):
    """Agents are there already: nothing is installed."""

    def __init__(self, context: Any, addresses: list[str]) -> None:
        super().__init__(context)
        numbers = {address: number for number, address in enumerate(addresses)}

        async def install(id: Any, host: SshHost) -> Installed:
            # Through the tunnel once, as a real one would be reached.
            await self.tunnels.remote(id)
            way = Way(f"ssh:{AGENTS}/{numbers[host.place]}.sock", TOKEN, host.place)
            async with context.database.transaction() as tx:
                await self._ssh._ways.note(tx, id, way)
            return Installed(way, INFO)

        self._ssh._install = install  # type: ignore[method-assign]


async def _server(place: Path) -> None:
    addresses = (place / "addresses").read_text().split()
    settings = Settings(place / "hold", port=0, database_url=os.environ["BENCH_URL"], log_level="warning")
    said = {"user": "root", "identity_file": "key", "hosts": addresses}
    configuration = FleetConfiguration.model_validate({"type": "fleet", "name": "many", "ssh_config": said})
    async with running(settings, lambda context: Holding(context, addresses)) as served:
        garbage.tune()
        # The server that was there before, of the same database, has made the first token.
        token = Keyring(place / "server" / "config.yml").secret
        await _apply(served.url, token, configuration, (place / "key").read_text())
        async with served.context.database.connection() as connection:
            up = "SELECT count(*) FROM instance WHERE backend = 'ssh' AND state = 'IDLE'"
            while await connection.fetchval(up) < len(addresses):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        print("ready", flush=True)
        await asyncio.Event().wait()


async def _apply(url: str, token: str, configuration: FleetConfiguration, key: str) -> None:
    body = {"configuration": configuration.model_dump(mode="json", exclude_defaults=True), "keys": {"key": key}}
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {token}"}
        async with session.post(f"{url}/api/projects/main/fleets", json=body, headers=headers) as answer:
            assert answer.status == 201, await answer.text()


if __name__ == "__main__":
    if sys.argv[1] == "agents":
        agents(int(sys.argv[2]))
    else:
        asyncio.run(_server(Path(sys.argv[2])))
