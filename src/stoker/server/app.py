"""The HTTP application: routes, their errors, and the page that describes them."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from stoker.server import error
from stoker.server.api import (
    dummy,
    event,
    execution,
    fleet,
    health,
    hold,
    instance,
    job,
    log,
    offer,
    plan,
    project,
    run,
    schedule,
    server,
    statistics,
    task,
    task_log,
    token,
    user,
    volume,
    worker,
)
from stoker.server.context import Context
from stoker.server.edge import Edge
from stoker.server.raw_body import schemas

PUBLIC: Final = frozenset(
    {"/healthz", "/healthz/live", "/healthz/ready", "/metrics", "/api/openapi.json"}
    | {"/api/schema/task", "/api/schema/fleet", "/api/schema/volume"}
)
"""What is answered without a token."""

NOUNS: Final = (
    worker, run, plan, log, job, event, schedule, hold, statistics, task, execution, task_log, instance, fleet, offer,
    volume, project, user, token, dummy, server,
)  # fmt: skip
"""Under /api, with a token. Routes are tried one after the other, so what is asked for most comes first."""

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
    app.add_middleware(Edge, metrics=context.metrics, trouble=lambda: context.engine.committer.trouble)
    for noun in NOUNS:
        app.include_router(noun.router, prefix="/api", responses=error.ERRORS)
    app.include_router(server.public, prefix="/api")
    app.include_router(health.router)
    plain = app.openapi
    app.openapi = lambda: _secured(plain())  # type: ignore[method-assign]
    return app


def _secured(description: dict[str, Any]) -> dict[str, Any]:
    """Says which routes need a token. A dependency of FastAPI's would say it too, and cost time at every request."""
    bearer = {"type": "http", "scheme": "bearer", "description": "A token of `stoker token create`."}
    description["components"]["securitySchemes"] = {"token": bearer}
    description["components"]["schemas"] = schemas() | description["components"]["schemas"]
    for path, methods in description["paths"].items():
        if path not in PUBLIC:
            for operation in methods.values():
                operation["security"] = [{"token": []}]
    return description


def _operation(route: APIRoute) -> str:
    return route.name
