"""How a worker ends: told to, killed, out of time, out of work. No task outlives it."""

import os
import signal
import time
from pathlib import Path

from stoker.runner import proc
from tests.worker.fake import serving
from tests.worker.stage import Hand, processes_of, until, working


async def test_no_task_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path) as hand:
        keys = [server.add("sleep 1000 & setsid sleep 1000 & wait") for _ in range(2)]
        await until(lambda: all(len(processes_of(key)) == 3 for key in keys))
        os.kill(hand.pid, signal.SIGKILL)
        assert await hand.ended() == 128 + signal.SIGKILL
        assert not any(processes_of(key) for key in keys)


async def test_no_task_outlives_a_keeper_that_is_killed(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path) as hand:
        key, worker = server.add("sleep 1000 & wait"), hand.pid
        await until(lambda: len(processes_of(key)) == 2)
        hand.keeper.kill()
        await until(lambda: not processes_of(key) and not proc.alive(worker))


async def test_what_a_worker_and_its_keeper_left_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    """Both are killed at once, as by somebody who kills everything with a name."""
    async with serving() as server:
        async with working(server, tmp_path) as hand:
            key = server.add("sleep 1000")
            await until(lambda: processes_of(key))
            worker = hand.pid
            os.kill(worker, signal.SIGSTOP)
            hand.keeper.kill()
            os.kill(worker, signal.SIGKILL)
            await until(lambda: not proc.alive(worker))
        assert processes_of(key)
        async with working(server, tmp_path):
            await until(lambda: not processes_of(key))
            await until(lambda: len(list((tmp_path / "worker").glob("[0-9]*"))) == 1)


async def test_told_to_end_it_waits_for_what_runs_and_gives_back_the_rest(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path) as hand:
        gate = tmp_path / "gate"
        running = [server.add(f"while [ ! -e {gate} ]; do sleep 0.02; done") for _ in range(2)]
        await until(lambda: all(key in server.started for key in running))
        hand.send(signal.SIGTERM)
        await until(lambda: "told to end" in hand.said())
        left = server.add(["/bin/true"])
        gate.touch()
        assert await hand.ended() == 0
        assert {server.ended[key].exit_status for key in running} == {0}
        assert left not in server.ended and len(server.available) == 1
        assert server.left == [server.workers[0].id]
        assert not list((tmp_path / "worker").glob("[0-9]*"))


async def test_what_is_queued_goes_back_when_it_is_told_to_end(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path) as hand:
        server.generous = 5
        keys = [server.add("sleep 1") for _ in range(7)]
        await until(lambda: len(server.started) == 2)
        hand.send(signal.SIGTERM)
        assert await hand.ended() == 0
        assert not server.held
        assert {server.ended[key].exit_status for key in keys[:2]} == {0}
        assert set(server.given_back) == set(keys[2:])


async def test_told_twice_it_stops_what_runs(tmp_path: Path) -> None:
    """The attempt failed, whatever the program says: it was not done."""
    async with serving() as server, working(server, tmp_path) as hand:
        polite = server.add("trap 'exit 0' TERM; sleep 1000 & wait", grace_s=20)
        stubborn = server.add("trap '' TERM; while :; do sleep 0.1; done", grace_s=0.3)
        await until(lambda: {polite, stubborn} <= set(server.started))
        hand.send(signal.SIGINT)
        await until(lambda: "told to end" in hand.said())
        hand.send(signal.SIGTERM)
        assert await hand.ended() == 0
        assert server.ended[polite].exit_status is None and not server.ended[polite].stopped
        assert server.ended[stubborn].exit_status == -9
        assert "told to stop" in server.ended[stubborn].message


async def test_told_a_third_time_it_goes_at_once_and_still_tells_what_became_of_its_tasks(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path) as hand:
        key = server.add("trap '' TERM; while :; do sleep 0.1; done", grace_s=1000)
        await until(lambda: key in server.started)
        hand.send(signal.SIGTERM)
        await until(lambda: "told to end" in hand.said())
        hand.send(signal.SIGTERM)
        await until(lambda: "stops what runs" in hand.said())
        hand.send(signal.SIGTERM)
        assert await hand.ended() == 0
        assert server.ended[key].exit_status == -9
        assert server.left


async def test_what_it_could_not_tell_is_not_given_back_as_if_it_had_not_begun(tmp_path: Path) -> None:
    """The server is away when the worker has to go: its lease runs out, and the attempt counts."""
    async with serving() as server, working(server, tmp_path, "--time-limit", "6s") as hand:
        key = server.add("sleep 1000", grace_s=0.1)
        await until(lambda: key in server.started)
        server.away = True
        server.cut_sockets()
        assert await hand.ended() == 0
        assert not processes_of(key)
        server.away = False
        assert not server.left and not server.ended


async def test_a_drain_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path, "--drain-timeout", "0.5") as hand:
        key = server.add("sleep 1000")
        await until(lambda: key in server.started)
        hand.send(signal.SIGTERM)
        assert await hand.ended() == 0
        assert server.ended[key].exit_status == -15


async def test_it_ends_within_its_time(tmp_path: Path) -> None:
    began = time.monotonic()
    async with serving() as server, working(server, tmp_path, "--time-limit", "8s") as hand:
        key = server.add("trap '' TERM; while :; do sleep 0.1; done", grace_s=1)
        assert await hand.ended() == 0
        assert time.monotonic() - began < 9
        assert server.ended[key].exit_status == -9 and "time" in server.ended[key].message
        assert server.workers[0].time_limit is not None and server.workers[0].time_limit <= 8
        assert server.left


async def test_it_ends_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path, "--idle-timeout", "0.7s") as hand:
        key = server.add("sleep 1")
        assert await hand.ended() == 0
        assert server.ended[key].exit_status == 0


async def test_a_terminal_that_closes_ends_it_like_ctrl_c(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path) as hand:
        hand.send(signal.SIGHUP)
        assert await hand.ended() == 0
        assert server.left


async def test_wrong_options_are_refused_with_a_sentence(tmp_path: Path) -> None:
    async with serving() as server:
        for options, word in (
            (("--memory", "much"), "memory"),
            (("--time-limit", "soon"), "--time-limit"),
            (("--resource", "licence"), "NAME=VALUE"),
            (("--resource", "cpus=2"), "--cpus"),
            (("--gpus", "some"), "--gpus"),
            (("--group", "a b"), "group"),
            (("--label", "x y=1"), "labels"),
        ):
            hand = Hand(server, tmp_path / word, *options)
            assert await hand.ended() == 1
            assert word in hand.said() and "Traceback" not in hand.said()
