"""The tokens of workers: each opens the routes of one worker and nothing else. They are computed and never stored."""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from fastapi import Depends, Path, Request

from stoker.core.ids import WorkerId
from stoker.server.auth import Access, ProjectName, in_project
from stoker.server.error import Unauthorized
from stoker.wire.user import Role

PREFIX: Final = "stw_"
WORKER_HEADER: Final = "Stoker-Worker"
"""Who speaks, where the path does not say it."""

WorkerRef = Annotated[UUID, Path(description="The id of a worker.")]


@dataclass(frozen=True, slots=True)
class Speaker:
    """A worker that showed its own token."""

    id: WorkerId
    project: str


def token_of(secret: bytes, project: str, worker: UUID) -> str:
    digest = hmac.new(secret, f"worker {project} {worker}".encode(), hashlib.sha256).digest()
    return PREFIX + urlsafe_b64encode(digest).decode().rstrip("=")


def shown(request: Request) -> str:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def is_own(secret: bytes, project: str, worker: UUID, token: str) -> bool:
    return hmac.compare_digest(token_of(secret, project, worker).encode(), token.encode())


async def enter(request: Request, project: ProjectName, worker: WorkerRef) -> Speaker:
    if not is_own(request.app.state.context.secret, project, worker, shown(request)):
        raise Unauthorized("This is not the token of this worker.", hint="It is told when the worker registers.")
    return Speaker(WorkerId(worker), project)


Own = Annotated[Speaker, Depends(enter)]


def _own_or(role: Role) -> Callable[..., Awaitable[Speaker | Access]]:
    member = in_project(role)

    async def enter(request: Request, project: ProjectName) -> Speaker | Access:
        """A worker by its own token, or a member of the project."""
        token = shown(request)
        if not token.startswith(PREFIX):
            return await member(request, project)
        worker = request.headers.get(WORKER_HEADER) or request.path_params.get("worker", "")
        try:
            id = UUID(str(worker))
        except ValueError:
            raise Unauthorized("Which worker this is, is not said.", hint=f"Send its id as {WORKER_HEADER}.") from None
        if not is_own(request.app.state.context.secret, project, id, token):
            raise Unauthorized("This is not the token of this worker.", hint="It is told when the worker registers.")
        return Speaker(WorkerId(id), project)

    return enter


OwnOrMember = Annotated[Speaker | Access, Depends(_own_or(Role.USER))]
OwnOrManager = Annotated[Speaker | Access, Depends(_own_or(Role.MANAGER))]
