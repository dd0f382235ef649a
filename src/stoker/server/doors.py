"""What a server knows of hosts that are reached by SSH: how to log in, with which keys, and as what they were met."""

import time
from collections.abc import Callable, Iterable, Mapping

import structlog

from stoker.core.errors import Unavailable, UserError
from stoker.core.ids import FleetId, InstanceId, ProjectId
from stoker.core.route import Route
from stoker.server.seal import Seal
from stoker.store import ssh as store
from stoker.store.database import Connection, Database
from stoker.transport.ssh import Access, Met, fingerprint

log = structlog.get_logger()


class Doors:
    def __init__(self, database: Database, seal: Seal, now: Callable[[], float] = time.time) -> None:
        self._database, self._seal, self.now = database, seal, now
        self.revision = 0
        """Another one whenever somebody has changed how hosts are logged in to: what failed is tried at once."""

    async def access(self, id: InstanceId) -> Access:
        async with self._database.connection() as connection:
            host = await store.get(connection, id)
            if host is None or host.project_id is None:
                raise Unavailable(f"Nobody has said how to log in to the host of instance {id}.")
            named = await store.fleet_keys(connection, host.fleet_id)
            pins = await store.pins(connection, places_of(host.route))
            wanted = {hop.identity for hop in (host.route.target, host.route.jump) if hop is not None}
            own = await self.project_key(connection, host.project_id) if "" in wanted else None
        keys, public = dict[str, str](), dict[str, str]()
        for name in wanted:
            key, about = (own, host.project_id) if name == "" else (named.get(name), host.fleet_id)
            if key is None:
                hint = "Apply the fleet's file again where that key is."
                raise Unavailable(f"The server does not have the key {name}.", hint=hint)
            keys[name], public[name] = self._seal.open(key.sealed, f"{about}/{name}"), key.public
        return Access(host.route, keys, public, {place: pin.key for place, pin in pins.items()})

    async def met(self, access: Access, met: Met) -> None:
        async with self._database.connection() as connection:
            for place, key in met.fresh.items():
                await store.pin(connection, place, key, self.now())
                log.info("a host key is trusted from now on", host=place, key=fingerprint(key))
            for place, key in met.changed.items():
                await store.offered(connection, place, key)

    async def project_key(self, tx: Connection, project_id: ProjectId) -> store.Key:
        """Made at the first need."""
        if (known := await store.project_key(tx, project_id)) is not None:
            return known
        import asyncssh

        key = asyncssh.generate_private_key("ssh-ed25519", comment="stoker")
        private = key.export_private_key().decode()
        made = store.Key("", key.export_public_key().decode().strip(), self._seal.seal(private, f"{project_id}/"))
        return await store.make_key(tx, project_id, made, self.now())

    async def keep(self, tx: Connection, project_id: ProjectId, fleet_id: FleetId, keys: Mapping[str, str]) -> None:
        """Private keys that a person's client has read from the files of these names."""
        for name, private in keys.items():
            sealed = self._seal.seal(private, f"{fleet_id}/{name}")
            await store.keep_key(
                tx, project_id, fleet_id, store.Key(name, public_of(private, name), sealed), self.now()
            )


def places_of(route: Route) -> list[str]:
    return [route.place, *([route.jump.place] if route.jump is not None else [])]


def public_of(private: str, name: str) -> str:
    """What belongs in `authorized_keys`; a key that cannot be used is refused."""
    import asyncssh

    try:
        key = asyncssh.import_private_key(private)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        hint = "Name a private key without a passphrase, as ssh-keygen makes one, or none: then it is the project's."
        raise UserError(f"{name} is no key that a server can use: {error}.", hint=hint, code="identity") from None
    return key.export_public_key().decode().strip()


def missing(routes: Iterable[Route], known: Iterable[str]) -> list[str]:
    """Keys that are named, and that the server does not have."""
    named = {hop.identity for route in routes for hop in (route.target, route.jump) if hop is not None}
    return sorted(named - set(known) - {""})
