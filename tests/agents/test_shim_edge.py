"""What the shim answers to bad input: a status, a code and a sentence, and never a secret or a trace."""

import asyncio
import json
import random
import string
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stoker.runner.version import VERSION
from stoker.shim.api import ROUTES, openapi
from stoker.shim.limits import BODY_BYTES
from tests.agents.shim_stage import Stage, shared_stage

ID = uuid4()
SECRET = "a-secret-that-nobody-may-see"


@pytest.fixture(scope="module")
def shim(shared_directory: Path) -> Iterator[Stage]:
    """One for all tests here that leave it alive."""
    with shared_stage(shared_directory) as made:
        yield made


async def test_without_the_token_nothing_is_said(shim: Stage) -> None:
    for given in (
        "",
        "Bearer",
        "Bearer x",
        f"Basic {shim.token}",
        f"Bearer {shim.token}x",
        "Bearer \udce9",
        shim.token,
    ):
        for path in ("/healthz", "/tasks", "/openapi.json", "/nowhere"):
            told = await shim.ask("GET", path, headers={"Authorization": given})
            assert told.error == (401, "unauthorized"), given
    assert (await shim.ask("GET", "/healthz")).status == 200


BAD: list[tuple[str, str, Any, tuple[int, str]]] = [
    ("GET", "/nowhere", None, (404, "not_found")),
    ("GET", f"/tasks/{ID}", None, (404, "no_task")),
    ("GET", "/tasks/../../etc/passwd", None, (404, "not_found")),
    ("GET", "/tasks/..%2F..%2Fetc", None, (422, "validation")),
    ("GET", f"/tasks/{ID.hex}", None, (422, "validation")),
    ("PUT", "/tasks", {}, (405, "method_not_allowed")),
    ("POST", "/tasks", b"{", (422, "validation")),
    ("POST", "/tasks", b"\xff\xfe", (422, "validation")),
    ("POST", "/tasks", b"[" * 100_000, (422, "validation")),
    ("POST", "/tasks", b" " * (BODY_BYTES + 1), (413, "request_entity_too_large")),
    ("POST", "/tasks", {}, (422, "validation")),
    ("POST", "/tasks", {"unknown": 1}, (422, "validation")),
    ("POST", "/tasks", {"fence": -1}, (422, "validation")),
    ("POST", "/tasks", {"fence": 10**30}, (422, "validation")),
    ("POST", "/tasks", {"id": "../../x"}, (422, "validation")),
    ("POST", "/tasks", {"token": "short"}, (422, "validation")),
    ("POST", "/tasks", {"token": f"{SECRET}\r\nX: y"}, (422, "validation")),
    ("POST", "/tasks", {"cpu": 0}, (422, "validation")),
    ("POST", "/tasks", {"cpu": "NaN"}, (422, "validation")),
    ("POST", "/tasks", {"gpu_indices": [-1]}, (422, "validation")),
    ("POST", "/tasks", {"gpu_indices": [1, 1]}, (422, "gpu_twice")),
    ("POST", "/tasks", {"runtime": "docker"}, (422, "no_container")),
    ("POST", "/tasks", {"runtime": "magic"}, (422, "validation")),
    ("POST", f"/tasks/{ID}/terminate", {"fence": 1}, (404, "no_task")),
    ("POST", f"/tasks/{ID}/terminate", {}, (422, "validation")),
    ("POST", f"/tasks/{ID}/terminate", {"fence": 1, "grace_s": -1}, (422, "validation")),
    ("POST", f"/tasks/{ID}/terminate", {"fence": 1, "reason": "BECAUSE"}, (422, "validation")),
    ("POST", f"/tasks/{ID}/terminate?wait_s=61", {"fence": 1}, (422, "validation")),
    ("DELETE", f"/tasks/{ID}", None, (422, "validation")),
    ("DELETE", f"/tasks/{ID}?fence=x", None, (422, "validation")),
    ("GET", f"/tasks/{ID}/log?offset=-1", None, (422, "validation")),
    ("GET", f"/tasks/{ID}/log?limit=99999999", None, (422, "validation")),
    ("GET", "/changes?wait_s=61", None, (422, "validation")),
    ("GET", "/changes?wait_s=nan", None, (422, "validation")),
    ("GET", "/changes?unknown=1", None, (422, "validation")),
    ("POST", "/tasks", {"fence": True}, (422, "validation")),
    ("POST", "/tasks", {"fence": "1"}, (422, "validation")),
    ("POST", "/tasks", {"cpu": True}, (422, "validation")),
    ("POST", "/tasks", {"memory_mb": "512"}, (422, "validation")),
    ("POST", "/tasks", {"gpu_indices": [True]}, (422, "validation")),
    ("POST", f"/tasks/{ID}/terminate", {"fence": 1, "grace_s": False}, (422, "validation")),
    ("POST", "/leave", {"force": 1}, (422, "validation")),
    ("POST", "/leave", {"force": "perhaps"}, (422, "validation")),
]


async def test_bad_input_is_refused_with_a_code_and_changes_nothing(shim: Stage) -> None:
    for method, path, given, expected in BAD:
        whole = {"/tasks": shim.order(token=SECRET)}.get(path, {})
        body = given if isinstance(given, bytes) else json.dumps(whole | given if given else {}).encode()
        told = await shim.ask(method, path, data=None if given is None else body)
        assert told.error == expected, (method, path, given, told.body)
        assert SECRET.encode() not in told.body
        assert b"Traceback" not in told.body
    assert (await shim.ask("GET", "/tasks")).json == {"tasks": []}
    assert shim.directories() == []
    assert "request failed" not in (shim.home / "shim.log").read_text()


async def test_a_body_is_not_unpacked(shim: Stage) -> None:
    """Two megabytes that stand for two gigabytes, also from somebody without the token."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()
    for token, expected in ((shim.token, (422, "validation")), ("x", (401, "unauthorized"))):
        headers = {"Content-Encoding": "gzip", "Authorization": f"Bearer {token}"}
        told = await shim.ask("POST", "/tasks", data=bomb, headers=headers)
        assert told.error == expected


async def test_what_is_no_request_is_refused_and_not_written_down(shim: Stage) -> None:
    """Strangers could fill the shim's own log with whatever they like."""
    before = (shim.home / "shim.log").read_text()
    for headers in ({"X": "a" * 10_000}, {f"X{n}": "b" * 1000 for n in range(300)}):
        assert (await shim.ask("GET", "/healthz", headers=headers)).status == 400
    address = (shim.home / "address").read_text().strip()
    for words in (
        b"\x16\x03\x01" * 100,
        b"GET /" + b"a" * 100_000,
        b"POST /tasks HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        reader, writer = await asyncio.open_unix_connection(address)
        writer.write(words)
        writer.write_eof()
        await reader.read()
        writer.close()
    assert (await shim.ask("GET", "/healthz")).status == 200
    assert (shim.home / "shim.log").read_text() == before


async def test_random_requests_get_documented_answers(shim: Stage) -> None:
    """Whatever is sent, the status is one that the table of routes names, and an error is an `ErrorBody`."""
    dice = random.Random(1)
    for _ in range(300):
        route = dice.choice([route for name, route in ROUTES.items() if name != "leave"])
        path = route.path.replace("{id}", dice.choice((str(ID), str(uuid4()), _word(dice))))
        query = {key: _value(dice) for key in dice.sample(["offset", "limit", "own", "cursor", "fence", "x"], 2)}
        told = await shim.ask(route.method, path, params=query, data=_body(shim, dice))
        assert told.status in route.answers, (route, path, query, told.body)
        if told.status >= 400:
            assert told.json["error"]["message"], "a sentence"


def _word(dice: random.Random) -> str:
    return "".join(dice.choices(string.ascii_letters + "-._~", k=dice.randint(1, 40)))


def _value(dice: random.Random) -> str:
    return dice.choice(("0", "1", "-1", "true", "1e9", "0x", "", "9" * 25, _word(dice)))


def _body(shim: Stage, dice: random.Random) -> bytes:
    order: dict[str, Any] = shim.order(project_id=str(uuid4()), gpu_indices=[99])
    for key in dice.sample(sorted(order), dice.randint(0, 3)):
        order[key] = dice.choice((None, -1, 1, "x", [], {}, True, 1e300, "\0", "é" * 20))
    return dice.choice((json.dumps(order).encode(), dice.randbytes(30), b"null", b"[]", b"{}", b""))


def test_the_document_names_every_route_and_every_answer() -> None:
    document: Any = openapi()
    assert document["info"]["version"] == VERSION
    for route in ROUTES.values():
        operation = document["paths"][route.path][route.method.lower()]
        assert set(operation["responses"]) == {str(status) for status in route.answers}
    submit = document["paths"]["/tasks"]["post"]
    assert submit["requestBody"]["content"]["application/json"]["schema"]
    log = document["paths"]["/tasks/{id}/log"]["get"]
    assert {one["name"] for one in log["parameters"]} == {"id", "offset", "limit", "own"}
    assert "Stoker-Next-Offset" in log["responses"]["200"]["headers"]
    assert json.loads(json.dumps(document)) == document


async def test_the_document_is_served(shim: Stage) -> None:
    told = await shim.ask("GET", "/openapi.json")
    assert (told.status, told.json) == (200, openapi())


@pytest.mark.parametrize("name", ROUTES)
def test_each_route_says_that_a_token_is_wanted(name: str) -> None:
    assert 401 in ROUTES[name].answers
