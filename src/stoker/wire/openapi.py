"""The OpenAPI document of an agent, made from its table of routes and the models that cross its border."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

Body = type[BaseModel] | str | None
"""A model (sent as JSON), a media type (bytes), or nothing."""

_PLACEHOLDER: Final = re.compile(r"{(\w+)}")
_FORMATS: Final = {"id": {"format": "uuid"}}
"""Of what stands in a path."""
_REFERENCE: Final = "#/components/schemas/{model}"


@dataclass(frozen=True)
class Route:
    """One line of an agent's table of routes."""

    method: str
    path: str
    summary: str
    request: Body = None
    answers: dict[int, Body] = field(default_factory=dict)
    query: type[BaseModel] | None = None
    headers: Sequence[str] = ()
    """Of every answer that carries bytes."""


def document(title: str, routes: Sequence[Route], version: str = "1") -> dict[str, Any]:
    """Every route, with every answer that it gives; all of them want a bearer token."""
    used = [(model, _mode(route, model)) for route in routes for model in _models(route)]
    references, definitions = models_json_schema(used, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": definitions.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _models(route: Route) -> list[type[BaseModel]]:
    return [body for body in (route.request, *route.answers.values()) if isinstance(body, type)]


def _mode(route: Route, model: type[BaseModel]) -> JsonSchemaMode:
    return "validation" if model is route.request else "serialization"


def _operation(route: Route, references: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "parameters": _parameters(route),
        "responses": {
            str(status): {
                "description": HTTPStatus(status).phrase,
                **_headers(route, body),
                **_content(body, "serialization", references),
            }
            for status, body in sorted(route.answers.items())
        },
    }
    if route.request is not None:
        operation["requestBody"] = {"required": True, **_content(route.request, "validation", references)}
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    places = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"} | _FORMATS.get(name, {})}
        for name in _PLACEHOLDER.findall(route.path)
    ]
    if route.query is None:
        return places
    schema = route.query.model_json_schema()
    wanted = schema.get("required", [])
    return places + [
        {"name": name, "in": "query", "required": name in wanted, "schema": told}
        for name, told in schema["properties"].items()
    ]


def _headers(route: Route, body: Body) -> dict[str, Any]:
    if not isinstance(body, str) or not route.headers:
        return {}
    return {"headers": {name: {"schema": {"type": "string"}} for name in route.headers}}


def _content(body: Body, mode: JsonSchemaMode, references: dict[Any, Any]) -> dict[str, Any]:
    if body is None:
        return {}
    if isinstance(body, str):
        return {"content": {body: {"schema": {"type": "string", "format": "binary"}}}}
    return {"content": {"application/json": {"schema": references[body, mode]}}}
