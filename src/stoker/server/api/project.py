"""Projects and their members."""

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.errors import Conflict, NotFound
from stoker.core.ids import ProjectId
from stoker.server.auth import Access, Admin, Manager, Member, ServerAdmin, SignedIn
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.idempotency import IdempotencyKey, once
from stoker.server.parameter import Ctx, Cursor, Limit, NameRef, name_cursor
from stoker.server.sweep import NAME as SWEEP
from stoker.store import project as store
from stoker.store import user as user_store
from stoker.store.database import Connection
from stoker.transport.ssh import fingerprint
from stoker.wire.name import is_name
from stoker.wire.project import CreateProject, MemberPage, Project, ProjectKey, ProjectPage, SetMember
from stoker.wire.project import Member as MemberAnswer
from stoker.wire.time import moment
from stoker.wire.user import Role

router = APIRouter(prefix="/projects", tags=["projects"])


@router.get("", response_model=ProjectPage)
async def list_projects(context: Ctx, caller: SignedIn, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Those that you may enter."""
    mine = None if caller.admin else [id for id, _ in caller.roles.values()]
    async with context.database.connection() as connection:
        found = await store.page(connection, mine, name_cursor(cursor), limit + 1)
    items = tuple(map(_view, found[:limit]))
    return answered(ProjectPage(items=items, next_cursor=items[-1].name if len(found) > limit else None))


@router.post("", response_model=Project, status_code=201)
async def create_project(
    context: Ctx, caller: ServerAdmin, body: CreateProject, key: IdempotencyKey = None
) -> Response:
    """Whoever makes it is its admin."""

    async def make(tx: Connection, now: float) -> str:
        project = store.Project(ProjectId(context.engine.new_id()), body.name, now)
        if not await store.insert(tx, project):
            raise Conflict(f"There is a project {body.name} already.", code="name_taken")
        await store.set_member(tx, project.id, caller.user_id, Role.ADMIN, now)
        return body.name

    name = await once(context, caller, "projects", key, body, make)
    context.doorkeeper.forget()
    async with context.database.connection() as connection:
        return answered(_view(await store.get(connection, name)), 201)


@router.get("/{project}/key", response_model=ProjectKey)
async def get_key(context: Ctx, access: Member) -> Response:
    """By which hosts let the server in where a fleet names no other; it is made when it is asked for first."""
    async with context.database.transaction() as tx:
        public = (await context.doors.project_key(tx, access.project_id)).public
    return answered(ProjectKey(public_key=public, fingerprint=fingerprint(public)))


@router.get("/{project}", response_model=Project)
async def get_project(context: Ctx, access: Member) -> Response:
    async with context.database.connection() as connection:
        return answered(_view(await store.get(connection, access.project)))


@router.delete("/{project}", status_code=204)
async def delete_project(context: Ctx, access: Admin) -> Response:
    """With all its runs and their logs; refused while one of them is not finished."""
    async with context.database.transaction() as tx:
        if not await store.delete(tx, access.project_id, context.engine.clock.now()):
            raise Conflict(
                f"Project {access.project} has runs that are not finished.",
                hint="`stoker stop --all` stops them.",
                code="not_finished",
            )
    context.doorkeeper.forget()
    context.engine.wake(SWEEP)
    return Response(status_code=204)


@router.get("/{project}/members", response_model=MemberPage)
async def list_members(context: Ctx, access: Member, limit: Limit = 50, cursor: Cursor = None) -> Response:
    async with context.database.connection() as connection:
        found = await store.members(connection, access.project_id, name_cursor(cursor), limit + 1)
    items = tuple(map(_member_view, found[:limit]))
    return answered(MemberPage(items=items, next_cursor=items[-1].user if len(found) > limit else None))


@router.get("/{project}/members/{user}", response_model=MemberAnswer)
async def get_member(context: Ctx, access: Member, user: NameRef) -> Response:
    return answered(_member_view(await _find(context, access, user)))


@router.put("/{project}/members/{user}", response_model=MemberAnswer)
async def set_member(context: Ctx, access: Manager, user: NameRef, body: SetMember) -> Response:
    """Managers bring in users; other roles are given by admins of the project."""
    if not is_name(user):
        raise NotFound(f"There is no user {user[:63]}.")
    if body.role is not Role.USER:
        access.need(Role.ADMIN, f"make somebody {body.role}")
    async with context.database.transaction() as tx:
        found = await user_store.get(tx, user)
        before = await store.role_of(tx, access.project_id, found.id)
        if before not in (None, Role.USER):
            access.need(Role.ADMIN, f"change a {before}")
        await store.set_member(tx, access.project_id, found.id, body.role, context.engine.clock.now())
    context.doorkeeper.forget()
    return answered(_member_view(await _find(context, access, user)))


@router.delete("/{project}/members/{user}", status_code=204)
async def remove_member(context: Ctx, access: Manager, user: NameRef) -> Response:
    found = await _find(context, access, user)
    if found.role != Role.USER:
        access.need(Role.ADMIN, f"remove a {found.role}")
    async with context.database.connection() as connection:
        await store.remove_member(connection, access.project_id, found.user_id)
    context.doorkeeper.forget()
    return Response(status_code=204)


async def _find(context: Context, access: Access, user: str) -> store.Member:
    if not is_name(user):
        raise NotFound(f"{user[:63]} is no member of this project.")
    async with context.database.connection() as connection:
        return await store.member(connection, access.project_id, user)


def _view(one: store.Project) -> Project:
    return Project(id=one.id, name=one.name, created_at=moment(one.created_at))


def _member_view(one: store.Member) -> MemberAnswer:
    return MemberAnswer(user=one.user, role=Role(one.role), added_at=moment(one.added_at))
