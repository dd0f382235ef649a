"""A server from its first start to its last: its home, its PostgreSQL, its replicas, its end."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
import requests

from stoker.core.errors import Conflict, UserError
from stoker.server.first_start import Keyring
from stoker.server.main import running
from stoker.server.settings import Settings
from stoker.store.database import Database
from tests.api.conftest import Api, Apis, Client, eventually, task
from tests.api.test_log import frames, text
from tests.conftest import Databases

RUNS = "/api/projects/main/runs"

SERVER = """
import asyncio, sys
from pathlib import Path
from stoker.server.main import serve
from stoker.server.settings import Settings

settings = Settings(Path(sys.argv[1]), port=0, log_level="debug", log_format="json")
asyncio.run(serve(settings, lambda served: print("serving", served.url, flush=True)))
"""


@pytest.fixture
def home(shared_directory: Path, tmp_path: Path) -> Iterator[Path]:
    """In a place which PostgreSQL's account can reach."""
    place = shared_directory / f"server-{tmp_path.name[-20:]}"
    yield place
    shutil.rmtree(place, ignore_errors=True)


class Process:
    """A real server process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._log = (home.parent / f"{home.name}.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(home)], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line.startswith("serving "), self.said()
        self.url = line.split()[1]

    def get(self, path: str) -> Any:
        token = Keyring(self.home / "config.yml").secret
        answer = requests.get(self.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=20)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def said(self) -> str:
        return Path(self._log.name).read_text()

    def end(self, number: int) -> int:
        self._process.send_signal(number)
        code = self._process.wait(30)
        self._log.close()
        return code


def test_a_server_starts_on_an_empty_home_stops_in_good_order_and_starts_again(home: Path) -> None:
    first = Process(home)
    config = home / "config.yml"
    assert config.stat().st_mode & 0o777 == 0o600
    token = Keyring(config).secret
    assert first.get("/api/users/me")["name"] == "admin"
    assert [one["name"] for one in first.get("/api/projects")["items"]] == ["main"]
    said = first.said()
    assert token not in said
    assert all(json.loads(line)["level"] for line in said.splitlines())
    began = time.monotonic()
    assert first.end(signal.SIGTERM) == 0
    assert time.monotonic() - began < 10
    second = Process(home)
    try:
        assert Keyring(config).secret == token
        assert second.get("/api/users/me")["name"] == "admin"
        assert second.url in config.read_text()
    finally:
        assert second.end(signal.SIGINT) == 0


def test_a_killed_server_leaves_nothing_that_stops_the_next(home: Path) -> None:
    first = Process(home)
    first.end(signal.SIGKILL)
    second = Process(home)
    try:
        assert second.get("/api/users/me")["name"] == "admin"
    finally:
        assert second.end(signal.SIGTERM) == 0


async def test_postgres_that_dies_is_started_again(home: Path) -> None:
    async with running(Settings(home, port=0)) as served, aiohttp.ClientSession() as session:
        client = Client(session, served.url, Keyring(home / "config.yml").secret)
        await client.made(RUNS, {"configuration": task(name="train")})
        pid = int((home / "postgres/cluster/data/postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

        async def back() -> bool:
            # Its children answer for a moment after it has died.
            answer = await client.get(f"{RUNS}/train")
            return answer.status == 200 and _postmaster(home) not in (None, pid)

        await eventually(back, "it answers again", 60)
        # And what is asked for meanwhile is only late.
        assert (await client.post(RUNS, {"configuration": task(name="next")})).status == 201


def _postmaster(home: Path) -> int | None:
    try:
        return int((home / "postgres/cluster/data/postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return None


async def test_a_server_stops_in_good_order_although_its_database_is_gone(home: Path) -> None:
    """Both are told to stop, or the machine goes down, and the database is faster."""
    async with running(Settings(home, port=0)):
        pid = _postmaster(home)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        async def gone() -> bool:
            return _is_gone(pid)

        await eventually(gone, "the postmaster is gone", 20)
    async with running(Settings(home, port=0)) as served, aiohttp.ClientSession() as session:
        client = Client(session, served.url, Keyring(home / "config.yml").secret)
        assert (await client.get("/api/users/me")).status == 200


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_the_owner_of_a_home_is_let_in_again_when_the_token_was_lost(home: Path) -> None:
    async with running(Settings(home, port=0)):
        old = Keyring(home / "config.yml").secret
    (home / "config.yml").unlink()
    async with running(Settings(home, port=0)) as served, aiohttp.ClientSession() as session:
        new = Keyring(home / "config.yml").secret
        assert new != old
        for secret in (old, new):
            assert (await Client(session, served.url, secret).get("/api/users/me")).body["admin"] is True


def put(home: Path, text: str) -> None:
    home.mkdir(mode=0o711)
    (home / "config.yml").write_text(text)


async def test_a_configuration_that_names_another_machine_is_not_touched(home: Path) -> None:
    put(home, 'url: https://stoker.example.org\ntoken: "stk_theirs"\n')
    before = (home / "config.yml").read_text()
    async with running(Settings(home, port=0)) as served, aiohttp.ClientSession() as session:
        assert (await Client(session, served.url, "stk_theirs").get("/api/users/me")).status == 401
    assert (home / "config.yml").read_text() == before


async def test_a_token_of_another_user_in_the_home_stays_what_it_is(home: Path) -> None:
    async with running(Settings(home, port=0)) as served, aiohttp.ClientSession() as session:
        admin = Client(session, served.url, Keyring(home / "config.yml").secret)
        await admin.made("/api/users", {"name": "ada"})
        token = (await admin.made("/api/tokens", {"user": "ada"}))["token"]
    config = home / "config.yml"
    config.write_text(f'url: "{served.url}"\ntoken: "{token}"\n')
    async with running(Settings(home, port=0)) as served, aiohttp.ClientSession() as session:
        assert Keyring(config).secret == token
        assert (await Client(session, served.url, token).get("/api/users/me")).body["name"] == "ada"


async def test_a_second_server_on_the_same_home_is_refused(home: Path) -> None:
    async with running(Settings(home, port=0)):
        with pytest.raises(Conflict, match="uses"):
            async with running(Settings(home, port=0)):
                pass


async def test_a_port_that_is_taken_is_said_before_anything_is_started(home: Path) -> None:
    async with running(Settings(home, port=0)) as served:
        port = int(served.url.rpartition(":")[2])
        with pytest.raises(Conflict) as refused:
            async with running(Settings(home / "other", port=port)):
                pass
        assert refused.value.code == "port_in_use"
        assert not (home / "other").exists()


async def test_two_replicas_of_one_database_watch_each_others_runs(api: Apis) -> None:
    """Who waits at one replica hears what the other one commits, and follows logs that the other one keeps."""
    async with api(None) as a, api(None, url=a.context.database.url) as b:
        b.admin.token = a.admin.token
        await a.host()
        run = await a.admin.made(RUNS, {"configuration": task(name="train")})
        job = UUID(run["jobs"][0]["id"])
        waiting = asyncio.ensure_future(b.admin.get(f"{RUNS}/train/wait?timeout_s=50"))
        await eventually(lambda: _watched(b), "somebody waits at the other one")
        await a.context.logs.append(job, 0, frames("hello"))
        assert text((await b.admin.get(f"{RUNS}/train/logs")).body) == "hello"
        await eventually(lambda: _runs(a), "it runs")
        began = time.monotonic()
        assert (await a.admin.post(f"{RUNS}/train/stop")).status == 200
        done = await waiting
        assert done.body["status"] == "TERMINATED"
        assert time.monotonic() - began < 8


async def _watched(b: Api) -> bool:
    return len(b.context.runs) > 0


async def _runs(a: Api) -> bool:
    return bool((await a.admin.get(f"{RUNS}/train")).body["status"] == "RUNNING")


async def test_replicas_that_keep_their_logs_apart_are_refused(database: Databases, tmp_path: Path) -> None:
    async with database() as db:
        url = db.url

        def settings(name: str) -> Settings:
            return Settings(tmp_path / name, port=0, database_url=url, logs=tmp_path / f"logs-{name}", name=name)

        async with running(settings("a")):
            with pytest.raises(UserError, match="keep their logs elsewhere"):
                async with running(settings("b")):
                    pass
        # Alone, it may have moved them.
        async with running(settings("b")):
            pass


async def test_a_server_that_stops_hands_its_work_back(database: Databases, tmp_path: Path) -> None:
    async with database() as db:
        async with running(Settings(tmp_path, port=0, database_url=db.url)):
            assert await _replicas(db) == 1
        assert await _replicas(db) == 0


async def _replicas(db: Database) -> int:
    async with db.connection() as connection:
        count: int = await connection.fetchval("SELECT count(*) FROM replica")
        return count


def test_settings_come_from_the_environment_and_flags_win() -> None:
    found = Settings.of({"STOKER_HOME": "/x", "STOKER_PORT": "99", "STOKER_LOG_FORMAT": "json"}, port=7, host=None)
    assert (found.home, found.port, found.host, found.log_format) == (Path("/x"), 7, "127.0.0.1", "json")
    assert Settings.of({"STOKER_HOME": "/x"}).replica != Settings.of({"STOKER_HOME": "/y"}).replica
    for wrong in ({"STOKER_PORT": "x"}, {"STOKER_PORT": "70000"}, {"STOKER_LOG_LEVEL": "loud"}):
        with pytest.raises(UserError):
            Settings.of({"STOKER_HOME": "/x", **wrong})
