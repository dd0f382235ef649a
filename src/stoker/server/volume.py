"""What people ask of volumes: a plan, one that is made, an end; and what a run that names some asks of them."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final

from stoker.core.errors import Conflict, NotFound
from stoker.core.ids import FleetId, InstanceId, VolumeId
from stoker.core.instance_facts import LIVE
from stoker.core.phrase import joined
from stoker.core.policy import Policy
from stoker.core.volume_facts import DeleteAsked, Kind, S, Volume
from stoker.engine.change import Change, VolumeBirth, of_volume
from stoker.engine.hint import PLACEMENT
from stoker.engine.volume import LOOP
from stoker.server import view
from stoker.server.api.instance import find_instance
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.error import Forbidden
from stoker.server.fleet import find_fleet
from stoker.store import fleet as fleet_store
from stoker.store import volume as store
from stoker.store.database import Connection
from stoker.wire import volume as wire
from stoker.wire.configuration import CODE, TaskConfiguration, to_policy
from stoker.wire.fleet import LOCAL
from stoker.wire.group import nodes_of
from stoker.wire.model import Invalid, Problem
from stoker.wire.mount import hosts_of, read, volumes_of
from stoker.wire.name import is_name
from stoker.wire.user import Role
from stoker.wire.volume import VolumeAction, VolumeConfiguration, VolumeExpected, VolumePlan

MOST_TOLD: Final = 5


class VolumeDesk:
    """One request of one caller."""

    def __init__(self, context: Context, access: Access) -> None:
        self._context, self._access = context, access

    async def plan(self, configuration: VolumeConfiguration) -> VolumePlan:
        async with self._context.database.connection() as connection:
            current = await self._current(connection, configuration.name)
            action = self._action(current, configuration)
            made = await self._made(connection, configuration)
        there = view.volume_of(current) if current else None
        return VolumePlan(
            action=action,
            sentence=_sentence(action, made),
            name=configuration.name,
            configuration=wire.to_json(configuration),
            current=there,
            expected=VolumeExpected(id=there.id, version=there.version) if there else None,
        )

    async def apply(self, configuration: VolumeConfiguration, expected: VolumeExpected | None, checked: bool) -> bool:
        """Whether it was made. `checked`: refused unless it is as `expected`, and None is no volume at all."""
        async with self._context.database.transaction() as tx:
            current = await self._current(tx, configuration.name)
            action = self._action(current, configuration)
            if current is None:
                if expected is not None:
                    raise _changed(configuration.name)
                made = await self._made(tx, configuration)
            elif action is VolumeAction.NOTHING:
                return False
            else:
                seen = expected is not None and expected.id == current.volume.id
                if checked and not (seen and expected and expected.version == current.volume.version):
                    raise _changed(configuration.name)
                if not await store.retag(tx, current.volume, _stored(configuration)):
                    raise _changed(configuration.name)
                return False
        birth = VolumeBirth(made, _stored(configuration), self._access.user)
        # Shielded: a client that goes away while it is being made finds it made.
        await asyncio.shield(self._context.engine.commit(Change(volumes=(birth,))))
        return True

    async def delete(self, name: str) -> store.Shown:
        """With all that is in it. Refused while a run wants it."""
        async with self._context.database.connection() as connection:
            found = await find_volume(connection, self._access, name)
            users = await store.users(connection, found.volume, MOST_TOLD + 1)
        self._may_delete(found)
        if found.volume.state not in (S.DELETING, S.DELETED):
            if users:
                raise _in_use(name, users)
            event = DeleteAsked(by=self._access.user)
            try:
                await self._context.engine.commit(Change(facts=(of_volume(found.volume.id, event),)))
            except Conflict as conflict:
                if conflict.code != "state":
                    raise
                raise _in_use(name, [one.partition("/")[0] for one in found.holders]) from None
        self._context.engine.tell(PLACEMENT, LOOP)
        async with self._context.database.connection() as connection:
            return await find_volume(connection, self._access, name)

    def _may_delete(self, found: store.Shown) -> None:
        if found.made_by != self._access.user and not self._access.may(Role.MANAGER):
            raise Forbidden(
                f"{self._access.user} is {self._access.role} in project {self._access.project} and may not delete "
                f"volume {found.volume.name}, which {found.made_by or 'nobody'} made.",
                hint=f"Ask {found.made_by or 'a manager'}, or a manager of the project.",
            )

    async def _current(self, tx: Connection, name: str) -> store.Shown | None:
        current = await store.get(tx, self._access.project_id, name)
        if current is None or current.volume.state is S.DELETED:
            return None
        if current.volume.state is S.DELETING:
            raise Conflict(
                f"Volume {name} is being deleted.",
                hint=f"Wait until it is gone: stoker volume get {name}",
                code="deleting",
            )
        return current

    def _action(self, current: store.Shown | None, configuration: VolumeConfiguration) -> VolumeAction:
        """What a volume is made of never changes, for what is in it would be lost; its tags may."""
        if current is None:
            return VolumeAction.CREATE
        before, after = _flat(store.spec_of(current)), _flat(wire.to_json(configuration))
        keys = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
        if fixed := [key for key in keys if key != "tags"]:
            raise Conflict(
                f"Volume {configuration.name} is there and is another: {joined(fixed)} cannot change.",
                hint=f"Choose another name, or delete it with what is in it: stoker volume delete {configuration.name}",
                code="name_taken",
            )
        return VolumeAction.UPDATE if keys else VolumeAction.NOTHING

    async def _made(self, tx: Connection, configuration: VolumeConfiguration) -> Volume:
        instance_id, fleet_id = await self._place(tx, configuration)
        nfs = configuration.kind == "nfs"
        return Volume(
            id=VolumeId(self._context.engine.new_id()),
            project_id=self._access.project_id,
            name=configuration.name,
            kind=Kind(configuration.kind),
            exclusive=wire.exclusive(configuration),
            size_mb=wire.size_mb(configuration),
            source=f"{configuration.server}:{configuration.path}" if nfs else "",
            fleet_id=fleet_id,
            instance_id=instance_id,
            named=instance_id is not None,
            entered_at=self._context.engine.clock.now(),
        )

    async def _place(
        self, tx: Connection, configuration: VolumeConfiguration
    ) -> tuple[InstanceId | None, FleetId | None]:
        try:
            if configuration.instance is not None:
                shown = await find_instance(tx, self._access, configuration.instance)
                if shown.instance.state not in LIVE:
                    what = f"{configuration.instance} is {shown.instance.state}"
                    raise Invalid([Problem(key="instance", message=what)], code=CODE)
                return shown.instance.id, None
            if configuration.fleet is not None:
                return None, (await find_fleet(tx, self._context, self._access, configuration.fleet)).id
        except NotFound as error:
            key = "instance" if configuration.instance is not None else "fleet"
            message = error.sentence[:1].lower() + error.sentence[1:].rstrip(".")
            raise Invalid([Problem(key=key, message=message, hint=error.hint)], code=CODE) from None
        return None, None


async def find_volume(tx: Connection, access: Access, name: str) -> store.Shown:
    """Also one that was deleted, as long as there is no other of that name: what became of it is asked."""
    found = await store.get(tx, access.project_id, name) if is_name(name) else None
    if found is None:
        near = get_close_matches(name, await store.names(tx, access.project_id), 1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else "`stoker volume list` lists them."
        raise NotFound(f"There is no volume {name[:63]} in project {access.project}.", hint=hint)
    return found


Named = Mapping[str, Volume]


async def check_volumes(context: Context, access: Access, configurations: Sequence[TaskConfiguration]) -> Named:
    """The volumes that they name. One that is not there would be waited for without end."""
    wanted = [one for one in configurations if one.volumes]
    if not wanted:
        return {}
    names = list(dict.fromkeys(name for one in wanted for name in volumes_of(one.volumes)))
    async with context.database.connection() as tx:
        found = await store.named(tx, access.project_id, names)
        known = await store.names(tx, access.project_id) if len(found) < len(names) else []
        fleets = await fleet_store.standing(tx) if any(hosts_of(one.volumes) for one in wanted) else []
    problems = [_unknown(name, known) for name in names if name not in found]
    problems += [_ending(one) for one in found.values() if one.state in (S.DELETING, S.FAILED)]
    problems += [problem for one in wanted for problem in _impossible(one, found)]
    if problems:
        raise Invalid(problems, code=CODE)
    for one in wanted:
        for mount in hosts_of(one.volumes):
            allowed(access, mount.host, mount.read_only, one.fleets, fleets)
    return found


def policy_with(configuration: TaskConfiguration, named: Named) -> Policy:
    """By their ids: one that is deleted and made anew under its name is another."""
    policy = to_policy(configuration)
    if not configuration.volumes:
        return policy
    ids = tuple(named[name].id for name in volumes_of(configuration.volumes))
    fleets = (LOCAL,) if hosts_of(configuration.volumes) else policy.fleets
    return replace(policy, volumes=ids, fleets=fleets)


def allowed(
    access: Access, host: str, read_only: bool, fleets: Sequence[str] | None, standing: Sequence[fleet_store.Standing]
) -> None:
    """A directory of a host is whoever's the host is: of the server's own, its admins'."""
    others = [name for name in fleets or (LOCAL,) if name != LOCAL]
    if others:
        raise Forbidden(
            f"{host} is a directory of a host, and such are mounted on the server's own host only, not in {others[0]}.",
            hint=f"Write fleets: [{LOCAL}], or make a volume (`type: volume`) of it.",
        )
    if not access.caller.admin:
        raise Forbidden(
            f"{access.user} is no admin of this server and may not mount {host} of its own host.",
            hint="Make a volume (`type: volume`) for data that outlives jobs, or ask an admin.",
        )


def _unknown(name: str, known: Sequence[str]) -> Problem:
    near = get_close_matches(name, known, 1, cutoff=0.5)
    there = f"There are {joined(known[:MOST_TOLD])}." if known else "There is none; `stoker apply` makes one."
    return Problem(
        key="volumes", message=f"there is no volume {name}", hint=f"Did you mean {near[0]}?" if near else there
    )


def _ending(volume: Volume) -> Problem:
    if volume.state is S.FAILED:
        message = f"volume {volume.name} has failed: {volume.message}"
        return Problem(key="volumes", message=message, hint=f"Delete it first: stoker volume delete {volume.name}")
    hint = "`stoker apply` makes it anew once it is gone."
    return Problem(key="volumes", message=f"volume {volume.name} is being deleted", hint=hint)


def _impossible(one: TaskConfiguration, found: Named) -> list[Problem]:
    """What no machine could ever do."""
    problems = []
    volumes = [found[mount.volume] for mount in map(read, one.volumes) if mount.volume in found]
    if nodes_of(one) > 1:
        for volume in volumes:
            if volume.kind is Kind.LOCAL or volume.exclusive:
                why = "is on one instance" if volume.kind is Kind.LOCAL else "is for one job at a time"
                message = f"volume {volume.name} {why}, and this has {nodes_of(one)} nodes on as many instances"
                problems.append(Problem(key="volumes", message=message, hint="One of kind nfs is for many."))
    names = [mount.volume for mount in map(read, one.volumes) if mount.volume]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            problems.append(Problem(key="volumes", message=f"volume {name} is mounted more than once"))
    return problems


def _in_use(name: str, users: Sequence[str]) -> Conflict:
    named = list(dict.fromkeys(users))
    more = [f"{len(named) - MOST_TOLD} or more others"] if len(named) > MOST_TOLD else []
    what = f"run {named[0]}" if len(named) == 1 else f"runs {joined([*named[:MOST_TOLD], *more])}" if named else "a job"
    return Conflict(
        f"Volume {name} is used by {what}.",
        hint=f"Stop it first: stoker stop {named[0]}" if len(named) == 1 else "Stop them first.",
        code="in_use",
    )


def _changed(name: str) -> Conflict:
    return Conflict(f"Volume {name} is not as it was seen any more.", hint="Look at the plan again.", code="changed")


def _stored(configuration: VolumeConfiguration) -> str:
    return json.dumps(wire.to_json(configuration), ensure_ascii=False)


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Whatever way a size is written, it is the same."""
    configuration = VolumeConfiguration.model_validate(spec)
    sized = {"size": wire.size_mb(configuration), "exclusive": wire.exclusive(configuration)}
    return configuration.model_dump(mode="json") | sized


def _sentence(action: VolumeAction, made: Volume) -> str:
    if action is VolumeAction.NOTHING:
        return f"Volume {made.name} is so already."
    if action is VolumeAction.UPDATE:
        return f"The tags of volume {made.name} would be changed."
    where = {
        Kind.LOCAL: "on the instance that is named" if made.named else "where its first job lands",
        Kind.NFS: f"of {made.source}, and mounted wherever its jobs are",
        Kind.DUMMY: "at the dummy backend",
    }[made.kind]
    return f"Volume {made.name} would be made {where}."
