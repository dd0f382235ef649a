"""The HTTP application: routes, their errors, and the page that describes them."""

from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from stoker.server import error
from stoker.server.api import event, fleet, health, instance, job, log, plan, project, run, server, token, user
from stoker.server.auth import SECURED
from stoker.server.context import Context
from stoker.server.edge import Edge

PUBLIC: Final = frozenset(
    {"/healthz", "/healthz/live", "/healthz/ready", "/metrics", "/api/openapi.json", "/api/schema/task"}
)
"""What is answered without a token."""

# `plan` before `run`: its path would otherwise be taken for the name of a run.
NOUNS: Final = (server, user, token, project, plan, run, job, log, event, instance, fleet)
"""Under /api, with a token."""

_DESCRIPTION: Final = """\
Runs people's workloads on machines and never loses one.

Every request carries `Authorization: Bearer TOKEN`. Lists come in pages: `?limit=50&cursor=…`, with `next_cursor` in
the answer. What creates something takes an `Idempotency-Key`. Errors have a code, a sentence and a hint.
"""


def create_app(context: Context) -> FastAPI:
    app = FastAPI(
        title="Stoker",
        version=context.version,
        description=_DESCRIPTION,
        openapi_url="/api/openapi.json",
        # Their pages load scripts from elsewhere, which a server without a network cannot give.
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation,
        redirect_slashes=False,
    )
    app.state.context = context
    error.install(app)
    app.add_middleware(Edge, metrics=context.metrics)
    app.include_router(health.router)
    app.include_router(server.public, prefix="/api")
    app.include_router(_api(), prefix="/api")
    return app


def _api() -> APIRouter:
    api = APIRouter(responses=error.ERRORS, dependencies=SECURED)
    for noun in NOUNS:
        api.include_router(noun.router)
    return api


def _operation(route: APIRoute) -> str:
    return route.name
