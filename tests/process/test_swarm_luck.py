"""Bad luck with a real server and real workers: killed, frozen, cut off, and commands that behave badly.

Each command notes on disk when it begins and ends, which is held against what the server tells: no task is lost, none
runs twice at once while its lease holds, and what waits for a task is released once.
"""

import asyncio
import hashlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from stoker.runner import proc
from stoker.shim import cgroup
from tests.api.conftest import Json
from tests.api.swarming import TASKS
from tests.machine import as_root, unavailable
from tests.process.stand import Stand, standing
from tests.process.swarm import Scene, hand, scene, until
from tests.process.trail import ALWAYS, FAILED, Trail, assert_in_order
from tests.process.wire import wired
from tests.worker.stage import Hand, processes_of_task

pytestmark = pytest.mark.xdist_group("swarm-luck")

LEASE_S = 2.0
Hands = Callable[..., Hand]


@pytest.fixture(scope="module")
def server(new_home: Callable[[], Path]) -> Iterator[Stand]:
    """With a short lease. A test may kill it, if it starts it again."""
    home = new_home()
    with standing(home, local=False, STOKER_LEASE=f"{LEASE_S:g}s") as stand:
        yield stand
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def hands(server: Stand, tmp_path: Path) -> Iterator[Hands]:
    """Starts workers for the tasks of one group."""
    made: list[Hand] = []

    def start(of: Scene, url: str = "") -> Hand:
        home = tmp_path / f"hand-{len(made)}"
        made.append(hand(server, home, "--cpus", "4", "--group", of.group, url=url))
        return made[-1]

    yield start
    for one in made:
        one.kill()


@pytest.fixture
def trail(tmp_path: Path) -> Trail:
    return Trail(tmp_path / "trail")


async def outcomes(of: Scene, id: str) -> list[tuple[str, int | None]]:
    return [(info["outcome"], info["exit_status"]) for info in await of.history(id)]


def attempt_of(id: str, attempt: int) -> list[int]:
    """The processes of that attempt."""
    mark = f"STOKER_ATTEMPT={attempt}".encode()
    return [pid for pid in processes_of_task(id) if proc.has_in_environment(pid, mark)]


async def passed(since: float, seconds: float) -> None:
    await until(lambda: time.monotonic() - since > seconds, f"{seconds:g} s have passed")


async def test_what_a_killed_worker_ran_is_lost_and_done_by_another(
    server: Stand, hands: Hands, trail: Trail, tmp_path: Path
) -> None:
    """`kill -9` with four tasks in hand, one of which has no attempt left."""
    gate = tmp_path / "gate"
    async with scene(server) as s:
        command = trail.command(gate=gate)
        told: list[Json] = [{"ref": str(n), "command": command, "max_retry_count": min(n + 1, 2)} for n in range(4)]
        then: list[Json] = [{"command": trail.command(), "depends_on": [str(n)]} for n in range(4)]
        ids = await s.submit(*told, *then)
        first = hands(s)
        for id in ids[:4]:
            await s.begun(id)
        os.kill(first.pid, signal.SIGKILL)
        hands(s)
        gate.touch()
        for id in ids:
            await s.reaches(id, "terminated", "cancelled")
        assert await first.ended() == 128 + signal.SIGKILL
        once, *again = ids[:4]
        assert (await outcomes(s, once), await s.state(ids[4])) == ([("lost", None)], "cancelled")
        for id in again:
            assert await outcomes(s, id) == [("lost", None), ("ended", 0)]
            assert len({info["worker"] for info in await s.history(id)}) == 2
        notes = trail.notes()
        assert notes.attempts() == {once: [1]} | {id: [1, 2] for id in again} | {id: [1] for id in ids[5:]}
        assert (notes.beside, notes.twice) == (set(), [])
        assert_in_order(notes, dict(zip(ids[4:], [[id] for id in ids[:4]], strict=True)))
        figures = (await s.client.get(f"{TASKS}/statistics?group={s.group}")).body
        assert (figures["lost"], figures["retries"], figures["failed"], figures["succeeded"]) == (4, 3, 1, 6)


async def test_a_worker_that_slept_past_its_lease_stops_what_is_not_its_own(
    server: Stand, hands: Hands, trail: Trail, tmp_path: Path
) -> None:
    """Frozen, it keeps two tasks. One ends meanwhile, and what the worker says of it later does not count."""
    gates = [tmp_path / "left", tmp_path / "done"]
    async with scene(server) as s:
        commands = [trail.command(gate=gate, fails=fails) for gate, fails in zip(gates, (0, 1), strict=True)]
        left, done = await s.submit(*({"command": command, "max_retry_count": 2} for command in commands))
        frozen = hands(s)
        for id in (left, done):
            await s.begun(id)
        os.kill(frozen.pid, signal.SIGSTOP)
        gates[1].touch()
        await until(lambda: trail.ends() == 1, "one has ended, and nobody knows")
        hands(s)
        await until(lambda: attempt_of(left, 2), "another worker has begun it")
        assert attempt_of(left, 1)
        assert (await s.reaches(done, "terminated"))["exit_status"] == 0
        os.kill(frozen.pid, signal.SIGCONT)
        await until(lambda: not attempt_of(left, 1), "it is stopped where it is not wanted any more")
        assert attempt_of(left, 2)
        gates[0].touch()
        await s.reaches(left, "terminated")
        for id in (left, done):
            assert await outcomes(s, id) == [("lost", None), ("ended", 0)]
        notes = trail.notes()
        assert notes.codes == {(done, 1): FAILED, (done, 2): 0, (left, 2): 0}
        assert (notes.beside, notes.twice) == ({(left, 2)}, [])
        # It is of use again.
        assert (await s.reaches(await s.one(command="true"), "terminated"))["exit_status"] == 0


async def test_a_worker_cut_off_for_less_than_its_lease_loses_nothing(
    server: Stand, hands: Hands, trail: Trail, tmp_path: Path
) -> None:
    """One task ends meanwhile and one afterwards; another worker would be there to take them."""
    gates = [tmp_path / "meanwhile", tmp_path / "after"]
    async with scene(server) as s, wired(server.port) as wire:
        ids = await s.submit(*({"command": trail.command(gate=gate), "max_retry_count": 2} for gate in gates))
        await asyncio.to_thread(hands, s, wire.url)
        for id in ids:
            await s.begun(id)
        await asyncio.to_thread(hands, s)
        wire.cut()
        cut_at = time.monotonic()
        gates[0].touch()
        await until(lambda: trail.ends() == 1, "one has ended")
        await passed(cut_at, 0.3 * LEASE_S)
        wire.mend()
        await s.reaches(ids[0], "terminated")
        gates[1].touch()
        await s.reaches(ids[1], "terminated")
        for id in ids:
            assert await outcomes(s, id) == [("ended", 0)]


async def test_a_worker_cut_off_for_longer_than_its_lease_loses_what_it_has(
    server: Stand, hands: Hands, trail: Trail, tmp_path: Path
) -> None:
    """Its exclusive task is dead before another worker begins it. The other one goes on beside its second attempt
    until it is heard that it is not wanted any more."""
    gate = tmp_path / "gate"
    async with scene(server) as s, wired(server.port) as wire:
        command = trail.command(gate=gate)
        alone, plain = await s.submit(
            {"command": command, "max_retry_count": 2, "exclusive": True, "max_termination_time": 0.5},
            {"command": command, "max_retry_count": 2},
        )
        await asyncio.to_thread(hands, s, wire.url)
        for id in (alone, plain):
            await s.begun(id)
        wire.cut()
        await asyncio.to_thread(hands, s)
        await until(lambda: {(alone, 2), (plain, 2)} <= trail.notes().begun.keys(), "another worker has begun both")
        assert (attempt_of(alone, 1), bool(attempt_of(plain, 1))) == ([], True)
        wire.mend()
        await until(lambda: not attempt_of(plain, 1), "it is stopped where it is not wanted any more")
        gate.touch()
        for id in (alone, plain):
            await s.reaches(id, "terminated")
            assert await outcomes(s, id) == [("lost", None), ("ended", 0)]
        notes = trail.notes()
        assert notes.beside == {(plain, 2)}
        assert set(notes.codes) == {(alone, 2), (plain, 2)}


async def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(
    server: Stand, hands: Hands, trail: Trail
) -> None:
    """In the middle of claims, reports and releases, with two workers that go on as if nothing had happened."""
    async with scene(server) as s:
        for _ in range(2):
            hands(s)
        ids = await s.submit(*(task for number in range(80) for task in diamond(trail, number)))
        for count in (80, 200):
            await until(partial(more_ends, trail, count), "work goes on")
            server.kill_server()
            await asyncio.to_thread(server.start)
        assert (await s.client.get(f"{TASKS}/wait?group={s.group}&timeout_s=30")).body["seconds_left"] == 0
        listed = await s.client.get(f"{TASKS}?group={s.group}&limit=500&fields=state,exit_status,retry_count")
        ends = {each["id"]: (each["state"], each["exit_status"], each["retry_count"]) for each in listed.body["items"]}
        fours = [ids[place : place + 4] for place in range(0, len(ids), 4)]
        for number, four in enumerate(fours):
            expected: list[tuple[str, int | None, int]] = [("terminated", 0, 1)] * 4
            if number % 8 == 3:
                expected[1] = ("terminated", 0, 2)
            if number % 8 == 5:
                expected[2:] = [("terminated", FAILED, 2), ("cancelled", None, 0)]
            assert [ends[id] for id in four] == expected
        notes = trail.notes()
        assert (notes.beside, notes.twice) == (set(), [])
        assert notes.begun.keys() == notes.ended.keys()
        assert_in_order(notes, {last: (left, right) for _, left, right, last in fours})
        assert_in_order(notes, {id: (first,) for first, left, right, _ in fours for id in (left, right)})
        figures = (await s.client.get(f"{TASKS}/statistics?group={s.group}")).body
        assert (figures["succeeded"], figures["failed"], figures["states"]["cancelled"]) == (300, 10, 10)
        assert (figures["exit_codes"], figures["lost"]) == ({"0": 300, "7": 30}, 0)


def more_ends(trail: Trail, than: int) -> bool:
    return trail.ends() > than


def diamond(trail: Trail, number: int) -> list[Json]:
    """One task before two before one. In some the second is tried again, in some the third never succeeds."""
    first, left, right = (f"{number}-{name}" for name in ("first", "left", "right"))
    again, never = number % 8 == 3, number % 8 == 5
    return [
        {"ref": first, "command": trail.command(lasts_s=0.05)},
        {"ref": left, "command": trail.command(fails=int(again)), "depends_on": [first], "max_retry_count": 2},
        {
            "ref": right,
            "command": trail.command(fails=ALWAYS if never else 0),
            "depends_on": [first],
            "max_retry_count": 2,
        },
        {"command": trail.command(), "depends_on": [left, right]},
    ]


@pytest.fixture(scope="module")
def steady(server: Stand) -> Iterator[str]:
    """A worker to which nothing happens, and the group whose tasks it takes."""
    one = hand(server, server.home / "steady", "--cpus", "4", "--group", "steady")
    yield "steady"
    one.kill()


async def test_commands_that_cannot_be_executed_fail_and_say_why(server: Stand, steady: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("no program")
    async with scene(server, steady) as s:
        for command, status, word in (
            (["no-such-command"], 127, "no command"),
            ([str(tmp_path / "gone")], 127, "no command"),
            ([str(plain)], 126, "cannot be executed"),
            ([str(tmp_path)], 126, "cannot be executed"),
        ):
            id, then = await s.submit(
                {"ref": "a", "command": command, "max_retry_count": 2}, {"command": "true", "depends_on": ["a"]}
            )
            await s.reaches(id, "terminated")
            assert await outcomes(s, id) == [("ended", status)] * 2, command
            assert word in (await s.history(id))[-1]["message"], command
            assert await s.state(then) == "cancelled"


async def test_a_hundred_megabytes_of_output_are_kept_to_the_last_byte(server: Stand, steady: str) -> None:
    """While they are printed heartbeats go on, so that the lease holds."""
    async with scene(server, steady) as s:
        id = await s.one(command="seq 13107200 | head -c 104857600; echo end >&2", max_retry_count=2)
        ended = await s.reaches(id, "terminated")
        printed = await s.output(id)
        assert (ended["exit_status"], ended["retry_count"], len(printed)) == (0, 1, 104857600)
        expected = await asyncio.create_subprocess_shell(
            "seq 13107200 | head -c 104857600 | sha256sum", stdout=asyncio.subprocess.PIPE
        )
        assert hashlib.sha256(printed).hexdigest().encode() == (await expected.communicate())[0].split()[0]
        assert await s.output(id, "stderr") == b"end\n"


async def test_children_that_are_left_behind_end_with_their_task(server: Stand, steady: str) -> None:
    """In its group and out of it, deaf to SIGTERM, holding its output open."""
    async with scene(server, steady) as s:
        deaf = "trap '' TERM; sleep 1000"
        id = await s.one(command=f'(sh -c "{deaf}" & setsid sh -c "{deaf}" & nohup sleep 1000 &) ; echo done')
        assert (await s.reaches(id, "terminated"))["exit_status"] == 0
        await until(lambda: not processes_of_task(id), "nobody is left")
        assert await s.output(id) == b"done\n"


EAT = "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))"


async def test_a_command_that_eats_all_memory_ends_when_it_has_what_it_asked_for(server: Stand, steady: str) -> None:
    """Each of its attempts; what runs beside it notices nothing."""
    async with scene(server, steady) as s:
        beside = await s.one(command="sleep 1000")
        await s.begun(beside)
        greedy, then = await s.submit(
            {
                "ref": "greedy",
                "command": [sys.executable, "-c", f"import time\n{EAT}; time.sleep(0.01)"],
                "requested_resources": {"cpus": 1, "memory": "50MB"},
                "max_retry_count": 2,
            },
            {"command": "true", "depends_on": ["greedy"]},
        )
        await s.reaches(greedy, "terminated")
        assert await outcomes(s, greedy) == [("ended", -signal.SIGKILL)] * 2
        for info in await s.history(greedy):
            assert "took more memory than it had asked for" in info["message"]
        assert await s.states(beside, then) == ["running", "cancelled"]
        await s.cancel(beside)


@pytest.fixture
def small_host(server: Stand, tmp_path: Path) -> Iterator[str]:
    """A worker on a host with so little memory; the group whose tasks it takes."""
    groups = cgroup.find(f"stoker-test-{os.getpid()}")
    directories = groups.directories(uuid4())
    if not directories:
        unavailable("this host lets nobody make control groups with limits")
    groups.make(directories, None, 400)
    one = hand(server, tmp_path / "small", "--cpus", "4", "--group", "small")
    try:
        for pid in (one.keeper.pid, one.pid):
            for directory in directories:
                Path(directory, "cgroup.procs").write_text(str(pid))
        yield "small"
    finally:
        one.kill()
        cgroup.remove(directories)
        groups.close()


@as_root
async def test_when_a_host_has_no_memory_left_the_one_that_ate_it_goes(server: Stand, small_host: str) -> None:
    """It had not said how much it needs. Its worker survives it, and so does the task beside it."""
    async with scene(server, small_host) as s:
        beside = await s.one(command="sleep 1000")
        running = await s.begun(beside)
        greedy = await s.one(command=f'{sys.executable} -c "{EAT}"; exit $?')
        ended = await s.reaches(greedy, "terminated")
        (info,) = await s.history(greedy)
        assert (ended["exit_status"], info["outcome"]) == (128 + signal.SIGKILL, "ended")
        assert "ran out of memory" in info["message"]
        assert (await s.reaches(await s.one(command="true"), "terminated"))["exit_status"] == 0
        assert (await s.get(beside))["worker"] == running["worker"] is not None
        await s.cancel(beside)
