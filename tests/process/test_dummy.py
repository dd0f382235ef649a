"""Machines of the dummy backend and a server that is killed: nothing is lost, nothing is doubled, nothing is left."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.process.stand import Stand, until
from tests.process.test_replica import postgres

pytestmark = pytest.mark.xdist_group("dummy")

FLEET = "type: fleet\nname: dummies\nbackends: [dummy]\nnodes: 0..2\n"


def ask(url: str, query: str, *arguments: Any) -> list[dict[str, Any]]:
    async def work() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(url)
        try:
            return [dict(row) for row in await connection.fetch(query, *arguments)]
        finally:
            await connection.close()

    return asyncio.run(work())


def apply_fleet(stand: Stand) -> None:
    file = stand.home / "fleet.yaml"
    file.write_text(FLEET)
    applied = stand("apply", "-y", "-f", str(file))
    assert applied.returncode == 0, applied.stderr


def instances(url: str) -> list[str]:
    return [row["state"] for row in ask(url, "SELECT state FROM instance ORDER BY id")]


def machines(stand: Stand) -> list[dict[str, Any]]:
    """As they are on disk, whether or not a server is there."""
    directory = stand.home / "dummy" / "machines"
    files = directory.glob("*/machine.json") if directory.exists() else ()
    return [json.loads(file.read_text()) for file in files]


def told(stand: Stand, *words: str) -> Any:
    answer = stand("dummy", *words, "--json")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_a_server_killed_in_the_middle_of_a_launch_and_of_a_destroy_finds_everything_again(
    new_home: Callable[[], Path], own_stand: Callable[..., Stand]
) -> None:
    offer = {"name": "box", "cpu": 1, "memory": "1GB", "real": True, "answer_delay": "3s", "destroy_delay": "3s"}
    with postgres(new_home()) as url:
        stand = own_stand(local=False, STOKER_DATABASE_URL=url)
        stand.home.mkdir(mode=0o711)
        (stand.home / "backends.yml").write_text(json.dumps({"dummy": {"offers": [offer]}}))
        stand.start()
        try:
            apply_fleet(stand)
            stand.submit("long", "sleep 1000")
            # Its provider has made the machine, and the answer is still on its way.
            (machine,) = until(lambda: machines(stand), "a machine is made")
            assert instances(url) == ["PENDING"]
            stand.kill_server()
            stand.start()
            stand.reaches("long", "RUNNING")
            assert ([one["id"] for one in machines(stand)], instances(url)) == ([machine["id"]], ["BUSY"])
            (shown,) = told(stand, "machines")
            assert (shown["id"], shown["status"], shown["ip"]) == (machine["id"], "up", "127.77.0.1")

            assert stand("dummy", "preempt", shown["name"], "--notice", "1h").returncode == 0
            stand.reaches("long", "FAILED")
            until(lambda: [one for one in machines(stand) if one["gone_at"]], "it is being destroyed")
            assert instances(url) == ["TERMINATING"]
            stand.kill_server()
            assert machines(stand)
            stand.start()
            until(lambda: instances(url) == ["TERMINATED"], "it is confirmed that it is gone")
            assert machines(stand) == []
            assert list((stand.home / "dummy" / "machines").iterdir()) == []
            assert stand.server is not None
            until(lambda: [*stand.agents()] == [stand.server.pid], "no agent is left")  # type: ignore[union-attr]
        finally:
            stand.clear()


def test_a_job_on_a_simulated_machine_ends_while_the_server_is_away(
    new_home: Callable[[], Path], own_stand: Callable[..., Stand]
) -> None:
    with postgres(new_home()) as url:
        stand = own_stand(local=False, STOKER_DATABASE_URL=url)
        stand.start()
        try:
            apply_fleet(stand)
            assert {one["name"] for one in told(stand, "offers")} == {"small", "large", "gpu8"}
            changed = told(stand, "set", "small", "--spot", "--location", "here", "--price", "0.001")
            assert [(one["location"], one["spot"], one["price"]) for one in changed] == [("here", True, 0.001)]
            stand.submit("short", "echo before", "sleep 2", "echo after", "exit 9")
            stand.reaches("short", "RUNNING")
            (machine,) = told(stand, "machines")
            assert (machine["offer"], machine["location"], machine["spot"]) == ("small", "here", True)
            stand.kill_server()
            stand.start()
            run = stand.finished("short")
            assert (run["status"], run["exit_code"]) == ("FAILED", 9)
            assert stand.log("short") == b"before\nafter\n"
            assert [one["id"] for one in told(stand, "machines")] == [machine["id"]]
            assert {one["price"] for one in told(stand, "offers") if one["name"] == "small"} == {0.1, 0.03, 0.001}
            vanished = stand("dummy", "vanish", machine["name"])
            assert (vanished.returncode, vanished.stdout) == (0, f"{machine['name']}  gone\n")
            until(lambda: instances(url) == ["TERMINATED"], "its row knows")
            wrong = stand("dummy", "vanish", machine["name"])
            assert wrong.returncode == 1
            assert "There is no machine" in wrong.stderr
        finally:
            stand.clear()
