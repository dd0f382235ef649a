"""Prints docs/reference/api.md: every route of the server, of a shim and of a runner, from their own tables.

`python -m docs.apis` rewrites the page. The documents for programs (OpenAPI) are served by the parts themselves.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from fastapi.routing import APIRoute

from stoker.runner.api import ROUTES as RUNNER
from stoker.server.api import health, server
from stoker.server.app import NOUNS
from stoker.shim.api import ROUTES as SHIM
from stoker.wire.openapi import Route

PAGE: Final = Path(__file__).parent / "reference" / "api.md"
_HEAD: Final = """\
# APIs

Printed by `make docs` from the tables of routes. What goes in and out of each is in its OpenAPI document: the
server's at `/api/openapi.json`, a shim's at `/openapi.json`; the schemas of configurations are at `/api/schema/task`
and `/api/schema/fleet`.
"""


def page() -> str:
    return "\n".join((_HEAD, *_server(), *_agent("Shim", _SHIM, SHIM.values()), *_agent("Runner", _RUNNER, RUNNER)))


_SERVER: Final = """\
Every request carries `Authorization: Bearer TOKEN`, except for health, metrics from the same machine, and the
documents.
"""
_SHIM: Final = """\
The agent of a host, on a unix socket with a token that only its server has. Orders carry a fence: one that is older
than another that was heard of the same task is refused.
"""
_RUNNER: Final = """\
The agent of one job, on a unix socket with a token of its own. Logs are frames with byte offsets.
"""


def _server() -> Iterator[str]:
    yield from ("## Server", "", _SERVER)
    routes = [("/api" + route.path, route) for noun in NOUNS for route in _routes(noun.router.routes)]
    routes += [("/api" + route.path, route) for route in _routes(server.public.routes)]
    routes += [(route.path, route) for route in _routes(health.router.routes)]
    yield from _table((_method(route), path, _first_line(route)) for path, route in sorted(routes, key=_order))


def _order(pair: tuple[str, APIRoute]) -> tuple[str, str]:
    return pair[0], _method(pair[1])


def _method(route: APIRoute) -> str:
    return min(route.methods or ("GET",))


def _routes(routes: Iterable[object]) -> Iterator[APIRoute]:
    return (route for route in routes if isinstance(route, APIRoute))


def _first_line(route: APIRoute) -> str:
    return (route.endpoint.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")


def _agent(name: str, sentence: str, routes: Iterable[Route]) -> Iterator[str]:
    yield from (f"## {name}", "", sentence)
    yield from _table((route.method, route.path, route.summary) for route in routes)


def _table(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    yield from ("| | | |", "|---|---|---|")
    for method, path, told in rows:
        yield f"| {method} | `{path}` | {' '.join(told.split())} |"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
