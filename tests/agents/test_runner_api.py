"""The edge of a runner: who gets in, what is refused and how, and the archive with the code."""

import asyncio
import gzip
import io
import json
import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stoker.runner.api import openapi
from stoker.runner.limits import BODY_BYTES, CODE_BYTES, SCRIPT_BYTES
from stoker.wire.openapi import Route, document
from stoker.wire.runner import RunnerState
from tests.agents.running import fork_server, runner
from tests.machine import as_root


@pytest.fixture(scope="module")
def fork_socket(shared_directory: Path) -> Iterator[Path]:
    home = shared_directory / "runner-api"
    home.mkdir(mode=0o711)
    with fork_server(home) as path:
        yield path


@pytest.fixture
def place(fork_socket: Path) -> Path:
    return fork_socket.parent / uuid4().hex[:8]


PATHS = {
    "GET": ("/healthz", "/pull", "/own", "/metrics", "/live"),
    "POST": ("/job", "/run", "/stop", "/deadline", "/heard"),
    "PUT": ("/code",),
}


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", "Basic {token}", "bearer {token} ", "Bearer {token}x", "ü"]
)
async def test_without_the_token_nobody_learns_or_changes_anything(fork_socket: Path, place: Path, given: str) -> None:
    async with runner(fork_socket, place) as one:
        headers = {"Authorization": given.format(token=one.token)}
        for method, path in (*((method, path) for method, paths in PATHS.items() for path in paths), ("GET", "/no")):
            told = await one.ask(method, path, headers=headers, json=one.order("true") if method != "GET" else None)
            assert told.error == (401, "unauthorized")
            assert one.token.encode() not in told.body
        assert (await one.health()).state == RunnerState.WAIT_SUBMIT


async def test_what_is_not_there_is_said_like_any_error(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        assert (await one.ask("GET", "/no-such-path")).error == (404, "not_found")
        told = await one.ask("DELETE", "/job")
        assert told.error == (405, "method_not_allowed")
        assert told.headers["Allow"] == "POST"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"fence": "x"}, "fence"),
        ({"fence": True}, "fence"),
        ({"fence": -1}, "fence"),
        ({"fence": 10**30}, "fence"),
        ({"fence": "1"}, "fence"),
        ({"submission": True}, "submission"),
        ({"stop_duration_s": False}, "stop_duration_s"),
        ({"tty": 1}, "tty"),
        ({"tty": "yes"}, "tty"),
        ({"env": {"A": 1}}, "env.A"),
        ({"commands": "echo"}, "commands"),
        ({"comands": ["echo"]}, "comands"),
        ({"submission": 0}, "submission"),
        ({"job_id": "7"}, "job_id"),
        ({"log_quota_bytes": 0}, "log_quota_bytes"),
        ({"commands": ["a\0b"]}, "commands.0"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"env": {"": "x"}}, "env"),
        ({"env": {"SECRET": "hidden\0"}}, "env.SECRET"),
        ({"stop_duration_s": -1}, "stop_duration_s"),
        ({"stop_duration_s": 1e30}, "stop_duration_s"),
    ],
)
async def test_a_wrong_order_is_refused_by_the_name_of_what_is_wrong(
    fork_socket: Path, place: Path, change: dict[str, Any], field: str
) -> None:
    async with runner(fork_socket, place) as one:
        told = await one.ask("POST", "/job", json=one.order("true") | change)
        assert told.error == (422, "validation")
        assert told.sentence.startswith(field)
        assert b"hidden" not in told.body
        assert not (place / "order.json").exists()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"fence": Infinity}'])
async def test_a_body_that_is_no_order_is_refused(fork_socket: Path, place: Path, body: bytes) -> None:
    async with runner(fork_socket, place) as one:
        for path in ("/job", "/stop"):
            told = await one.ask("POST", path, data=body)
            assert told.error == (422, "validation")
            assert b"Traceback" not in told.body
        assert (await one.health()).state == RunnerState.WAIT_SUBMIT


@pytest.mark.parametrize(
    "query",
    ["offset=-1", "offset=x", "wait_s=61", "wait_s=nan", "limit=0", "limit=2000000", "ofset=1", f"offset={2**70}"],
)
async def test_a_wrong_question_is_refused(fork_socket: Path, place: Path, query: str) -> None:
    async with runner(fork_socket, place) as one:
        for path in ("/pull", "/own"):
            told = await one.ask("GET", f"{path}?{query}")
            assert told.error == (422, "validation")
            assert told.sentence.startswith(query.split("=")[0])


async def test_what_is_too_large_is_refused(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        told = await one.ask("POST", "/job", data=b"x" * (BODY_BYTES + 1))
        assert told.error == (413, "request_entity_too_large")
        told = await one.ask("POST", "/job", json=one.order("x" * (SCRIPT_BYTES + 1)))
        assert told.error == (422, "too_long")
        assert "Put them into a file" in json.loads(told.body)["error"]["hint"]
        told = await one.ask("POST", "/job", json=one.order("true", env={"A": "x" * SCRIPT_BYTES}))
        assert told.error == (422, "too_long")
        assert (await one.runs(f"# {'x' * (SCRIPT_BYTES - 20)}\nexit 3")).exit_code == 3


async def test_a_body_is_not_unpacked(fork_socket: Path, place: Path) -> None:
    """A few kilobytes could stand for gigabytes."""
    async with runner(fork_socket, place) as one:
        packed = gzip.compress(json.dumps(one.order("true")).encode())
        for method, path in (("POST", "/job"), ("POST", "/stop")):
            told = await one.ask(method, path, data=packed, headers={"Content-Encoding": "gzip"})
            assert told.error == (422, "validation")
        assert (await one.health()).state == RunnerState.WAIT_SUBMIT


async def test_half_a_request_and_no_request_disturb_nobody(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        for words in (
            b"",
            b"GET",
            b"POST /job HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
            b"\0" * 1000,
            b"GET / HTTP/9\r\n\r\n",
        ):
            _, writer = await asyncio.open_unix_connection(str(place / "runner.sock"))
            writer.write(words)
            await writer.drain()
            writer.close()
        assert (await one.runs("true")).exit_code == 0
        assert str(place) not in fork_socket.with_name("fork.log").read_text(), "it did not crash"


def archive(**files: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size, member.mode, member.uid = len(data), 0o755, 12345
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()


def strange(**fields: Any) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        good = tarfile.TarInfo("good")
        tar.addfile(good)
        member = tarfile.TarInfo("x")
        for name, value in fields.items():
            setattr(member, name, value)
        tar.addfile(member)
    return made.getvalue()


async def test_the_commands_run_when_the_code_is_here(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.submit("sh deep/hello.sh", code=True)
        assert (await one.ask("POST", "/run")).health.state == RunnerState.WAIT_CODE
        code = archive(deep__hello_sh=b"", **{"deep__hello.sh": b"echo from the code"})
        assert (await one.ask("PUT", "/code", data=code)).status == 200
        assert (await one.result()).exit_code == 0
        assert await one.output() == b"from the code\n"
        assert not (place / "code.tar").exists()


async def test_code_may_be_sent_again_and_is_unpacked_once(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.submit("cat a", code=True)
        assert (await one.ask("PUT", "/code", data=archive(a=b"first"))).status == 200
        assert (await one.ask("PUT", "/code", data=archive(a=b"second"))).status == 200
        await one.ask("POST", "/run")
        await one.result()
        assert await one.output() == b"first"
        assert (await one.ask("PUT", "/code", data=archive(a=b"third"))).health.result is not None


async def test_code_that_was_not_announced_is_refused(fork_socket: Path, place: Path) -> None:
    async with runner(fork_socket, place) as one:
        await one.submit("true")
        assert (await one.ask("PUT", "/code", data=archive(a=b"x"))).error == (409, "no_code")


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"no archive",
        archive(a=b"x" * 100_000)[:-50],
        strange(name="../outside"),
        strange(name="/stoker-outside"),
        strange(type=tarfile.SYMTYPE, linkname="/etc"),
        strange(type=tarfile.LNKTYPE, linkname="../runner.json"),
        strange(type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    ],
    ids=["empty", "no archive", "cut off", "above", "absolute", "link away", "hard link away", "device"],
)
async def test_an_archive_that_leads_astray_is_refused_whole(fork_socket: Path, place: Path, code: bytes) -> None:
    async with runner(fork_socket, place) as one:
        await one.submit("ls", code=True)
        told = await one.ask("PUT", "/code", data=code)
        if told.status == 200:
            # Python's filter takes the slash off an absolute name, and it lands inside.
            assert (place / "work" / "stoker-outside").exists()
        else:
            assert told.error == (422, "bad_archive")
            assert os.listdir(place / "work") == []
        assert "stoker-outside" not in os.listdir("/")
        assert not (place / "outside").exists()
        assert not (place / "code.tar").exists()


async def test_an_archive_over_the_limit_is_refused_while_it_comes(fork_socket: Path, place: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x"

    async with runner(fork_socket, place) as one:
        await one.submit("ls", code=True)
        told = await one.ask("PUT", "/code", data=endless(), headers={"Content-Length": str(CODE_BYTES + 1)})
        assert told.status == 413
        assert (await one.health()).state == RunnerState.WAIT_CODE


@as_root
async def test_as_root_the_code_belongs_to_the_user_of_the_job(fork_socket: Path, place: Path) -> None:
    """It is unpacked with his rights: a link that he laid into a directory of root's leads nowhere."""
    async with runner(fork_socket, place, uid=200_123, gid=200_123) as one:
        await one.submit("stat -c %u:%g a deep deep/b", code=True)
        assert (await one.ask("PUT", "/code", data=archive(a=b"x", deep__b=b"y"))).status == 200
        await one.ask("POST", "/run")
        assert (await one.result()).exit_code == 0
        assert (await one.output()).split() == [b"200123:200123"] * 3


def test_the_openapi_document_tells_every_route_and_answer() -> None:
    told = openapi()
    assert {path for paths in PATHS.values() for path in paths} == set(told["paths"])
    pull = told["paths"]["/pull"]["get"]
    assert {parameter["name"] for parameter in pull["parameters"]} == {"offset", "wait_s", "limit"}
    assert "Stoker-Health" in pull["responses"]["200"]["headers"]
    order = told["paths"]["/job"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert order == {"$ref": "#/components/schemas/JobOrder"}
    assert "ErrorBody" in told["components"]["schemas"]
    for route in told["paths"].values():
        for operation in route.values():
            assert operation["responses"]["401"]["content"]


def test_places_in_a_path_are_parameters() -> None:
    told = document("x", [Route("GET", "/tasks/{id}", "One", None, {204: None})])
    assert told["paths"]["/tasks/{id}"]["get"]["parameters"] == [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}
    ]
