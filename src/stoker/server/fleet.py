"""What people ask of fleets: a plan, a change in place, an end. Machines come and go by the engine's loop."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final
from uuid import UUID

from stoker.core.block import divide
from stoker.core.errors import Conflict, NotFound, UserError
from stoker.core.fleet import Create, Join, Retire, home, misfit, plan_fleet, seen
from stoker.core.fleet import Fleet as Policy
from stoker.core.ids import FleetId, InstanceId, ProjectId, instance_name
from stoker.core.instance_facts import Instance, S
from stoker.core.offer import Offer, rank
from stoker.core.phrase import counted, joined
from stoker.engine.hint import ERRANDS, FLEETS, PLACEMENT
from stoker.engine.placement import LOCK
from stoker.server import view
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.error import Forbidden
from stoker.server.hosts import check_hosts, write_hosts
from stoker.store import fleet as store
from stoker.store import instance as instance_store
from stoker.store import journal
from stoker.store import volume as volume_store
from stoker.store.bundle import Bundle
from stoker.store.database import Connection
from stoker.wire import fleet as wire
from stoker.wire.configuration import CODE, TaskConfiguration
from stoker.wire.fleet import (
    LOCAL,
    OF_PROVIDERS,
    FleetAction,
    FleetChange,
    FleetConfiguration,
    FleetExpected,
    FleetPlan,
    Leaving,
)
from stoker.wire.model import Invalid, Problem
from stoker.wire.name import is_name
from stoker.wire.ssh import shown
from stoker.wire.user import Role

MOST_TOLD: Final = 5
NO_KEYS: Final[Mapping[str, str]] = {}
NOBODY: Final = FleetId(UUID(int=0))
"""A fleet that is not there yet."""


class FleetDesk:
    """One request of one caller."""

    def __init__(self, context: Context, access: Access) -> None:
        self._context, self._access = context, access

    async def plan(self, configuration: FleetConfiguration) -> FleetPlan:
        """What would change, field by field, and which machines would come and go."""
        now = self._context.engine.clock.now()
        async with self._context.database.connection() as connection:
            current = await self._current(connection, configuration)
            mine = (await instance_store.of_fleets(connection)).get(current.id, []) if current else []
            await check_hosts(connection, self._access.project_id, current.id if current else NOBODY, configuration)
            homes = await volume_store.homes(connection)
        _check_blocks(configuration, mine)
        changes = _changes(current, configuration)
        policy = wire.to_policy(configuration)
        actions = plan_fleet(policy, seen(policy, mine, homes), now)
        launches = sum(action.n for action in actions if isinstance(action, Create))
        retired = {action.instance_id: action.reason for action in actions if isinstance(action, Retire)}
        offer = _cheapest(policy, self._context.engine.merchant.offers(now), mine, now) if launches else None
        plan = FleetPlan(
            action=FleetAction.CREATE if current is None else FleetAction.UPDATE if changes else FleetAction.NOTHING,
            sentence="",
            name=configuration.name,
            configuration=wire.to_json(configuration),
            changes=changes,
            launches=launches,
            offer=str(offer) if offer else "",
            leaving=tuple(_leaving(policy, mine, retired)),
            joining=tuple(action.place for action in actions if isinstance(action, Join)),
            current=view.fleet_of(current) if current else None,
            expected=FleetExpected(id=current.id, version=current.version) if current else None,
        )
        return plan.model_copy(update={"sentence": _sentence(plan)})

    async def apply(
        self,
        configuration: FleetConfiguration,
        expected: FleetExpected | None,
        checked: bool,
        keys: Mapping[str, str] = NO_KEYS,
    ) -> bool:
        """Whether it was made. `checked`: refused unless it is as `expected`, and None is no fleet at all. `keys` are
        those that it names, by their names."""
        async with self._context.database.transaction() as tx:
            # Whoever launches counts under this lock: no machine comes by a policy that is not so any more.
            await tx.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            current = await self._current(tx, configuration)
            mine = (await instance_store.of_fleets(tx)).get(current.id, []) if current else []
            _check_blocks(configuration, mine)
            if current is None:
                if expected is not None:
                    raise Conflict(
                        f"Fleet {configuration.name} is not there any more.",
                        hint="Look at the plan again.",
                        code="changed",
                    )
                await self._hosts(tx, await self._make(tx, configuration), configuration, keys)
            elif not _changes(current, configuration):
                if configuration.ssh_config is None:
                    return False
                # Its keys may be others, and what failed on its hosts is tried again at once.
                may_manage(self._access, current.project_id, f"change the keys of fleet {current.name}")
                await self._hosts(tx, current.id, configuration, keys)
            else:
                if checked and (expected is None or (expected.id, expected.version) != (current.id, current.version)):
                    raise await _changed(tx, current, expected)
                await self._change(tx, current, configuration)
                await self._hosts(tx, current.id, configuration, keys)
        self._context.engine.tell(FLEETS, PLACEMENT, ERRANDS)
        return current is None

    async def delete(self, name: str, force: bool) -> store.Fleet:
        """It takes no more jobs from now on, and goes with its last instance."""
        async with self._context.database.transaction() as tx:
            await tx.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
            current = await find_fleet(tx, self._context, self._access, name)
            may_manage(self._access, current.project_id, f"delete fleet {name}")
            if current.name == LOCAL and current.project_id is None:
                raise Conflict(
                    f"Fleet {LOCAL} is the server's own host and stays.",
                    hint="`stoker instance cordon` keeps jobs away from it; a server without it is `stoker server`.",
                )
            policy = store.policy_of(current.policy)
            if not policy.deleting or (force and not policy.forced):
                mine = (await instance_store.of_fleets(tx)).get(current.id, [])
                _refuse_busy(current.name, mine, force)
                _refuse_homes(current.name, mine, {} if force else await volume_store.homes(tx))
                ending = replace(policy, deleting=True, forced=force)
                await store.change(tx, current.id, current.version, current.spec, ending)
                note = "with what runs on it" if force else "deleted"
                await self._tell(tx, current.id, "DeleteAsked", "ACTIVE", "DELETING", note)
            current = await find_fleet(tx, self._context, self._access, name)
        self._context.engine.tell(FLEETS, PLACEMENT)
        return current

    async def _current(self, tx: Connection, configuration: FleetConfiguration) -> store.Fleet | None:
        now, name = self._context.engine.clock.now(), configuration.name
        current = await store.get(tx, self._access.project_id, now, name)
        if current is None and name == LOCAL:
            raise UserError(
                "This server runs no jobs on its own host.", hint="`stoker up` starts one that does.", code="no_local"
            )
        if current is not None and store.policy_of(current.policy).deleting:
            raise Conflict(
                f"Fleet {name} is being deleted.",
                hint=f"Wait until it is gone: stoker fleet get {name}",
                code="deleting",
            )
        return current

    async def _hosts(
        self, tx: Connection, id: FleetId, configuration: FleetConfiguration, keys: Mapping[str, str]
    ) -> None:
        project_id = self._access.project_id
        await check_hosts(tx, project_id, id, configuration)
        await write_hosts(tx, self._context.doors, project_id, id, configuration, keys)

    async def _make(self, tx: Connection, configuration: FleetConfiguration) -> FleetId:
        engine, project_id = self._context.engine, self._access.project_id
        id, spec = FleetId(engine.new_id()), json.dumps(wire.to_json(configuration), ensure_ascii=False)
        policy = wire.to_policy(configuration)
        if not await store.insert(tx, id, configuration.name, project_id, spec, policy, engine.clock.now()):
            raise Conflict(f"Fleet {configuration.name} was made a moment ago.", hint="Look at the plan again.")
        await self._tell(tx, id, "Applied", None, "ACTIVE", "made")
        return id

    async def _change(self, tx: Connection, current: store.Fleet, configuration: FleetConfiguration) -> None:
        may_manage(self._access, current.project_id, f"change fleet {current.name}")
        spec, policy = json.dumps(wire.to_json(configuration), ensure_ascii=False), wire.to_policy(configuration)
        await store.change(tx, current.id, current.version, spec, policy)
        note = "; ".join(map(str, _changes(current, configuration)))
        await self._tell(tx, current.id, "Applied", "ACTIVE", "ACTIVE", note)

    async def _tell(self, tx: Connection, id: FleetId, event: str, source: str | None, target: str, note: str) -> None:
        bundle = Bundle()
        entry = journal.Entry("fleet", id, id, event, source, target, note, self._access.user, id)
        journal.append(bundle, [entry], self._context.engine.clock.now())
        await bundle.write(tx)


def may_manage(access: Access, project_id: ProjectId | None, what: str) -> None:
    """What belongs to a project is its managers' business, what serves all of them the server's admins'."""
    if project_id is not None:
        access.need(Role.MANAGER, what)
    elif not access.caller.admin:
        raise Forbidden(f"{access.user} is no admin of this server and may not {what}.", hint="It serves all projects.")


async def find_fleet(tx: Connection, context: Context, access: Access, name: str) -> store.Fleet:
    found = await store.get(tx, access.project_id, context.engine.clock.now(), name) if is_name(name) else None
    if found is None:
        near = get_close_matches(name, await store.names(tx, access.project_id), 1, cutoff=0.5)
        hint = f"Did you mean {near[0]}?" if near else "`stoker fleet list` lists them."
        raise NotFound(f"There is no fleet {name[:63]} in project {access.project}.", hint=hint)
    return found


async def check_fleets(tx: Connection, access: Access, configurations: Sequence[TaskConfiguration]) -> None:
    """A name that no fleet has would be waited for without end."""
    named = list(dict.fromkeys(name for one in configurations for name in one.fleets or ()))
    if not named:
        return
    known = await store.names(tx, access.project_id)
    there = f"There are {joined(known)}." if known else "There is none; `stoker apply` makes one."
    problems = []
    for name in named:
        if name not in known:
            near = get_close_matches(name, known, 1, cutoff=0.5)
            hint = f"Did you mean {near[0]}?" if near else there
            problems.append(Problem(key="fleets", message=f"there is no fleet {name}", hint=hint))
    if problems:
        raise Invalid(problems, code=CODE)


def _check_blocks(configuration: FleetConfiguration, instances: Sequence[Instance]) -> None:
    """The server's own host is there: whether it can be divided so is known now."""
    for one in instances:
        if configuration.name == LOCAL and configuration.blocks is not None:
            try:
                divide(one.blocks.capacity, configuration.blocks)
            except UserError as error:
                said = error.sentence.removeprefix("blocks: ").rstrip(".")
                raise Invalid([Problem(key="blocks", message=said, hint=error.hint)], code=CODE) from None


def _refuse_busy(name: str, instances: Sequence[Instance], force: bool) -> None:
    busy = [one for one in instances if one.blocks.held and one.state is not S.TERMINATING]
    if busy and not force:
        names = [instance_name(one.backend, one.id) for one in busy[:MOST_TOLD]]
        more = [f"{len(busy) - MOST_TOLD} others"] if len(busy) > MOST_TOLD else []
        raise Conflict(
            f"Jobs are on {counted(len(busy), 'instance')} of fleet {name}: {joined([*names, *more])}.",
            hint="Stop them or drain the instances first; --force interrupts what runs there.",
            code="busy",
        )


def _refuse_homes(name: str, instances: Sequence[Instance], homes: Mapping[InstanceId, str]) -> None:
    volumes = sorted(homes[one.id] for one in instances if one.id in homes)
    if volumes:
        what = f"volume {volumes[0]} is" if len(volumes) == 1 else f"volumes {joined(volumes[:MOST_TOLD])} are"
        raise Conflict(
            f"{what[:1].upper()}{what[1:]} on machines of fleet {name}, and would be lost with them.",
            hint="Delete them first (stoker volume delete NAME); --force loses what is in them.",
            code="volumes",
        )


async def _changed(tx: Connection, current: store.Fleet, expected: FleetExpected | None) -> Conflict:
    """Told with what somebody else did meanwhile."""
    since = current.version - expected.version if expected and expected.id == current.id else current.version + 1
    told = [f"{by or 'somebody'} {what}" for what, by in await store.changes(tx, current.id, min(since, MOST_TOLD))]
    return Conflict(
        f"Fleet {current.name} is not as it was seen any more{f': {joined(told)}' if told else ''}.",
        hint="Look at the plan again.",
        code="changed",
    )


def _changes(current: store.Fleet | None, configuration: FleetConfiguration) -> tuple[FleetChange, ...]:
    if current is None:
        return ()
    before = dict(_flat(FleetConfiguration.model_validate(json.loads(current.spec))))
    after = dict(_flat(configuration))
    return tuple(
        FleetChange(key=key, before=before.get(key, ""), after=after.get(key, ""))
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    )


def _flat(configuration: FleetConfiguration) -> Iterator[tuple[str, str]]:
    """Every key as people write it, also those that were left out."""
    if configuration.ssh_config is not None:
        yield from shown(configuration.ssh_config)
        # Of machines that are launched, which these are not.
    unsaid = {"ssh_config", *(OF_PROVIDERS if configuration.ssh_config is not None else ())}
    for key, value in configuration.model_dump(mode="json", exclude=unsaid).items():
        inner = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
        for name, one in inner.items():
            if one is not None:
                yield name, ", ".join(map(str, one)) if isinstance(one, list) else str(one)


def _leaving(policy: Policy, instances: Sequence[Instance], retired: Mapping[Any, str]) -> Iterator[Leaving]:
    there = home(instances) if policy.cluster else None
    for one in instances:
        unfit = misfit(policy, one, there)
        if one.state is not S.TERMINATING and (unfit or one.id in retired):
            name = instance_name(one.backend, one.id)
            yield Leaving(id=one.id, name=name, reason=unfit or retired[one.id], busy=bool(one.blocks.held))


def _cheapest(policy: Policy, offers: Sequence[Offer], instances: Sequence[Instance], now: float) -> Offer | None:
    room = policy.room(NOBODY, None, instances)
    fitting = (one for one in offers if room is not None and one.available != 0 and not room.refuses(one))
    return min(fitting, key=lambda one: rank(one, now), default=None)


def _sentence(plan: FleetPlan) -> str:
    if plan.action is FleetAction.NOTHING and not (plan.leaving or plan.launches or plan.joining):
        return f"Fleet {plan.name} is so already."
    said = {
        FleetAction.CREATE: f"Fleet {plan.name} would be made",
        FleetAction.UPDATE: f"Fleet {plan.name} would be changed",
        FleetAction.NOTHING: f"Fleet {plan.name} is so already",
    }[plan.action]
    parts = []
    if plan.launches:
        machines = counted(plan.launches, "machine")
        kind = f", {plan.offer}" if plan.offer else "; nothing that fits is on offer now"
        parts.append(f"{machines} would be launched{kind}")
    if plan.joining:
        parts.append(f"{counted(len(plan.joining), 'host')} would come")
    if plan.leaving:
        busy = sum(one.busy for one in plan.leaving)
        later = f", {busy} of them when their jobs have ended" if busy else ""
        parts.append(f"{counted(len(plan.leaving), 'machine')} would go{later}")
    return f"{said}{': ' if parts else ''}{', and '.join(parts)}."
