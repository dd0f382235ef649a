"""Who asks, and what they may do: a bearer token on every route, a role on those of a project.

A token is looked up once in two seconds, not once a request, and whatever changes people forgets it at once on this
replica; so another replica may still let in, for two seconds, somebody who was shut out here.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from fastapi import Depends, Path, Request

from stoker.core.errors import NotFound
from stoker.core.ids import ProjectId
from stoker.engine.clock import Clock
from stoker.engine.loop import Counts
from stoker.server.error import Forbidden, Unauthorized
from stoker.store import project as project_store
from stoker.store import token as token_store
from stoker.store.database import Database
from stoker.store.token import Found, hash_of
from stoker.wire.name import is_name
from stoker.wire.user import Role

REMEMBERED_S: Final = 2.0
MOST_REMEMBERED: Final = 10_000
FLUSH_S: Final = 30.0
"""How late `used_at` of a token may be."""
PREFIX: Final = "stk_"
"""So that a token is known as one where it does not belong, such as in a repository."""
_RANK: Final = {Role.USER: 1, Role.MANAGER: 2, Role.ADMIN: 3}


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True)
class Caller:
    token_id: UUID
    user_id: UUID
    user: str
    admin: bool
    """Of the whole server, by a token that is not for one project."""
    roles: Mapping[str, tuple[ProjectId, Role]]
    expires_at: float | None
    only: ProjectId | None
    """The one project that this token opens."""


@dataclass(frozen=True, slots=True)
class Access:
    """A caller in a project."""

    caller: Caller
    project_id: ProjectId
    project: str
    role: Role

    @property
    def user(self) -> str:
        return self.caller.user

    def may(self, role: Role) -> bool:
        return _RANK[self.role] >= _RANK[role]

    def need(self, role: Role, what: str) -> None:
        if not self.may(role):
            raise Forbidden(
                f"{self.user} is {self.role} in project {self.project} and may not {what}.",
                hint=f"Ask somebody who is {role} there.",
            )


class Doorkeeper:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._callers: dict[bytes, tuple[float, Caller]] = {}
        self._projects: dict[str, tuple[float, ProjectId]] = {}
        self._used: dict[UUID, float] = {}

    def forget(self) -> None:
        """People changed: everybody is looked up anew."""
        self._callers.clear()
        self._projects.clear()

    async def caller(self, header: str, now: float) -> Caller:
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Unauthorized("A token is needed.", hint="Send `Authorization: Bearer TOKEN`.")
        hash = hash_of(secret.strip())
        known = self._callers.get(hash)
        if known is None or now - known[0] > REMEMBERED_S:
            known = (now, await self._look_up(hash))
            if len(self._callers) >= MOST_REMEMBERED:
                self._callers.clear()
            self._callers[hash] = known
        caller = known[1]
        if caller.expires_at is not None and caller.expires_at <= now:
            raise Unauthorized("This token has expired.", hint="Make a new one: stoker token create.", code="expired")
        self._used[caller.token_id] = now
        return caller

    async def _look_up(self, hash: bytes) -> Caller:
        async with self._database.connection() as connection:
            found = await token_store.find(connection, hash)
        if found is None:
            raise Unauthorized("This token is not known.", hint="It may have been deleted; make a new one.")
        return _caller(found)

    async def access(self, caller: Caller, project: str, now: float) -> Access:
        """Somebody else's project is answered like one that does not exist."""
        mine = caller.roles.get(project)
        if mine is not None:
            return Access(caller, mine[0], project, mine[1])
        if caller.admin and is_name(project):
            known = self._projects.get(project)
            if known is None or now - known[0] > REMEMBERED_S:
                async with self._database.connection() as connection:
                    known = (now, (await project_store.get(connection, project)).id)
                self._projects[project] = known
            return Access(caller, known[1], project, Role.ADMIN)
        raise NotFound(f"There is no project {project[:63]} that you may see.", hint="`stoker project` lists yours.")

    async def flush_once(self) -> Counts:
        """Notes when tokens were used."""
        used, self._used = self._used, {}
        if used:
            async with self._database.connection() as connection:
                await token_store.used(connection, used)
        return Counts(len(used))


def _caller(found: Found) -> Caller:
    roles = {name: (id, Role(role)) for name, (id, role) in found.roles.items()}
    if found.project_id is not None:
        # Whatever its user may elsewhere, such a token opens one door.
        project_id, name = ProjectId(found.project_id), found.project or ""
        own = roles.get(name) or ((project_id, Role.ADMIN) if found.admin and name else None)
        roles = {name: own} if own else {}
    return Caller(
        found.id, found.user_id, found.user, found.admin and found.project_id is None, roles, found.expires_at,
        ProjectId(found.project_id) if found.project_id else None,
    )  # fmt: skip


async def _signed_in(request: Request) -> Caller:
    context = request.app.state.context
    doorkeeper: Doorkeeper = context.doorkeeper
    clock: Clock = context.engine.clock
    return await doorkeeper.caller(request.headers.get("authorization", ""), clock.now())


async def _admin(caller: Annotated[Caller, Depends(_signed_in)]) -> Caller:
    if not caller.admin:
        raise Forbidden(f"{caller.user} is no admin of this server.", hint="Ask one.")
    return caller


ProjectName = Annotated[str, Path(description="The name of the project.", examples=["main"])]


def in_project(role: Role) -> Callable[..., Awaitable[Access]]:
    async def enter(request: Request, project: ProjectName) -> Access:
        context = request.app.state.context
        doorkeeper: Doorkeeper = context.doorkeeper
        access = await doorkeeper.access(await _signed_in(request), project, context.engine.clock.now())
        access.need(role, "do this")
        return access

    return enter


SignedIn = Annotated[Caller, Depends(_signed_in)]
ServerAdmin = Annotated[Caller, Depends(_admin)]
Member = Annotated[Access, Depends(in_project(Role.USER))]
Manager = Annotated[Access, Depends(in_project(Role.MANAGER))]
Admin = Annotated[Access, Depends(in_project(Role.ADMIN))]
