"""A server in the test's own event loop, with hosts that it reaches by SSH, and agents that are quick to ship."""

import gzip
import hashlib
import io
import sys
import tarfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any

import aiohttp

import stoker
from stoker.bundle.known import Bundle, describe
from stoker.bundle.layer import Layer
from stoker.bundle.tree import VERSION
from stoker.server.first_start import Keyring
from stoker.server.hands import Hands
from stoker.server.main import Served, running
from stoker.server.settings import Settings
from stoker.transport.parcel import Parcel
from stoker.transport.tunnel import Tunnels
from stoker.wire.frame import decode
from tests.api.conftest import Client, Reply
from tests.hosts.land import Host
from tests.process.house import until

SOURCES = Path(stoker.__file__).parent.parent


@dataclass(frozen=True)
class OneLayer:
    sha256: str
    size_bytes: int
    archive: Path


@dataclass(frozen=True)
class Checkout:
    """Agents from this checkout, which hosts of a land see too: what travels is a file that says which version."""

    version: str
    layers: tuple[OneLayer, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.version.encode()).hexdigest()[:16]

    @property
    def manifest(self) -> str:
        return f'{{"version": "{self.version}"}}\n'

    def command(self, root: PurePath, module: str) -> list[str]:
        # As from a bundle, the program says from which tree it runs.
        return ["/usr/bin/env", f"STOKER_TREE={root}", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-P", "-m", module]


def checkout(directory: Path, version: str = "1") -> Checkout:
    def layer(name: str, text: str) -> OneLayer:
        archive = directory / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.tar.gz"
        # The same content is the same layer, whenever it is packed.
        with gzip.GzipFile(archive, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
            info = tarfile.TarInfo(f"{name}/told")
            info.size, info.mode = len(text), 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
        return OneLayer(hashlib.sha256(archive.read_bytes()).hexdigest(), archive.stat().st_size, archive)

    return Checkout(version, (layer("python", "the same in all"), layer("agents", f"version {version}")))


def upgraded(bundle: Bundle, directory: Path, version: str) -> Bundle:
    """The same agents, who say that they are of another version."""
    *others, agents = bundle.layers
    archive = directory / f"agents-{version}.tar.gz"
    with tarfile.open(agents.archive) as old, tarfile.open(archive, "w:gz", compresslevel=1) as new:
        for member in old:
            content: IO[bytes] | None = old.extractfile(member) if member.isreg() else None
            if member.name.removeprefix("./") == VERSION:
                content = io.BytesIO(version.encode())
                member.size = len(version)
            new.addfile(member, content)
    layer = Layer(agents.name, hashlib.sha256(archive.read_bytes()).hexdigest(), archive.stat().st_size, archive)
    return describe(bundle.root.parent, version, (*others, layer))


@dataclass
class Stand:
    home: Path
    url: str
    parcel: Parcel
    key: str
    served: Served = field(init=False)
    session: aiohttp.ClientSession = field(init=False)
    tunnels: Tunnels = field(init=False)

    @property
    def client(self) -> Client:
        secret = Keyring(self.served.context.settings.config_file).secret
        return Client(self.session, self.served.url, secret)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Stand"]:
        settings = Settings(self.home, port=0, database_url=self.url, log_level="info")
        async with running(settings, self._hands) as served:
            self.served = served
            async with aiohttp.ClientSession() as self.session:
                yield self

    def _hands(self, context: Any) -> Hands:
        async def parcel() -> Parcel:
            return self.parcel

        made = Hands(context, parcel)
        self.tunnels = made.tunnels
        return made

    async def ask(self, method: str, path: str, body: Any = None) -> Reply:
        return await self.client.ask(method, f"/api/projects/main/{path}", body)

    async def told(self, method: str, path: str, body: Any = None) -> Any:
        reply = await self.ask(method, path, body)
        assert reply.status < 300, reply.body
        return reply.body

    async def apply(self, name: str, hosts: Iterable[Host | Mapping[str, Any]], **more: Any) -> Reply:
        """With the land's key."""
        said = [{"host": one.ip} if isinstance(one, Host) else dict(one) for one in hosts]
        config = {"user": "root", "identity_file": "land.key", "hosts": said, **more}
        blocks = config.pop("blocks", None)
        configuration = {"type": "fleet", "name": name, "ssh_config": config, **({"blocks": blocks} if blocks else {})}
        keys = {"land.key": self.key} if config["identity_file"] else {}
        return await self.ask("POST", "fleets", {"configuration": configuration, "keys": keys})

    async def instances(self, *, finished: bool = False) -> list[Any]:
        found = (await self.told("GET", f"instances{'?finished=true' if finished else ''}"))["items"]
        return [one for one in found if one["backend"] == "ssh"]

    async def of(self, host: Host | str) -> Any:
        """The instance of a host that is not gone."""
        place = host if isinstance(host, str) else host.ip
        return next((one for one in await self.instances() if one["location"].startswith(place)), None)

    async def is_(self, host: Host | str, *states: str, patience_s: float = 30.0) -> Any:
        async def there() -> Any:
            one = await self.of(host)
            return one if one is not None and one["status"] in states else None

        try:
            return await until(there, f"{host} is {states}", patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {await self.of(host)}") from None

    async def in_trouble(self, host: Host | str, *words: str) -> str:
        """What stands in the way, once it says so."""

        async def there() -> str | None:
            one = await self.of(host)
            said = one["trouble"] if one is not None else ""
            return said if said and all(word in said for word in words) else None

        try:
            told: str = await until(there, f"{host} is in trouble: {words}", 30.0)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {await self.of(host)}") from None
        return told

    async def submit(self, *commands: str, **more: Any) -> str:
        made = await self.told("POST", "runs", {"configuration": {"type": "task", "commands": list(commands), **more}})
        return str(made["name"])

    async def run_is(self, name: str, *states: str, patience_s: float = 30.0) -> Any:
        async def there() -> Any:
            one = await self.told("GET", f"runs/{name}")
            return one if one["status"] in states else None

        try:
            return await until(there, f"{name} is {states}", patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {await self.told('GET', f'runs/{name}')}") from None

    async def log(self, name: str) -> str:
        """Of its first job, as far as the server has it."""
        frames = (await self.ask("GET", f"runs/{name}/logs")).body
        return b"".join(frame.data for frame in decode(frames)).decode()
