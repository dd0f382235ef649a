"""The hosts that a fleet names: which they are, who else has them, and the keys by which they are logged in to."""

from collections.abc import Mapping
from typing import Final

from stoker.core.errors import UserError
from stoker.core.ids import FleetId, ProjectId
from stoker.server.doors import Doors, missing
from stoker.store import ssh as store
from stoker.store.database import Connection
from stoker.wire.configuration import CODE
from stoker.wire.fleet import FleetConfiguration
from stoker.wire.model import Invalid, Problem
from stoker.wire.ssh import SshConfig

HOSTS: Final = "ssh_config.hosts"


async def check_hosts(
    tx: Connection, project_id: ProjectId, fleet_id: FleetId, configuration: FleetConfiguration
) -> None:
    """No host is in two fleets."""
    if configuration.ssh_config is None:
        return
    places = [route.place for route, _ in configuration.ssh_config.routes()]
    problems = []
    for one in await store.taken(tx, places, fleet_id):
        whose = f"fleet {one.fleet}" if one.project_id == project_id else "a fleet of another project"
        said = f"{one.place} is in {whose} already" if one.wanted else f"{one.place} has not left {whose} yet"
        hint = "Take it out of that one first." if one.wanted else "Try it again when it is gone from there."
        problems.append(Problem(key=f"{HOSTS}.{places.index(one.place)}", message=said, hint=hint))
    if problems:
        raise Invalid(problems, code=CODE)


async def write_hosts(
    tx: Connection,
    doors: Doors,
    project_id: ProjectId,
    fleet_id: FleetId,
    configuration: FleetConfiguration,
    keys: Mapping[str, str],
) -> None:
    """With the keys that came along; those of before are kept."""
    said = configuration.ssh_config
    routes = [] if said is None else [route for route, _ in said.routes()]
    named = set() if said is None else {name for _, name in said.identities()}
    for name in keys:
        if name not in named:
            raise UserError(f"The key {name} is named nowhere in ssh_config.", hint="Leave it out.", code="identity")
    await doors.keep(tx, project_id, fleet_id, keys)
    lacking = missing(routes, await store.fleet_keys(tx, fleet_id))
    if lacking and said is not None:
        raise Invalid([_missing(said, name) for name in lacking], code=CODE)
    await store.put(tx, fleet_id, routes)
    await store.hurry(tx, fleet_id, doors.now())
    doors.revision += 1


def _missing(said: SshConfig, name: str) -> Problem:
    path = next(path for path, one in said.identities() if one == name)
    key = ".".join(("ssh_config", *map(str, path)))
    hint = (
        "Name your private key, or leave identity_file out: then it is the project's, which `stoker project key` "
        "prints. Over HTTP keys belong in `keys`."
    )
    message = f"{name} is not there, and the server has no key by that name from before"
    return Problem(key=key, message=message, hint=hint)
