"""Bad luck between a worker and its server: silence, lost answers, cancellations, things taken away."""

import os
import signal
import time
from pathlib import Path

from tests.worker.fake import serving
from tests.worker.stage import Hand, processes_of, until, working


async def test_a_cancellation_arrives_at_once(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        polite = server.add("trap 'exit 7' TERM; sleep 1000 & wait")
        stubborn = server.add("trap '' TERM; while :; do sleep 0.1; done", grace_s=0.3)
        await until(lambda: {polite, stubborn} <= set(server.started))
        for key in (polite, stubborn):
            await server.cancel(key)
        await until(lambda: len(server.ended) == 2, patience_s=8)
        assert (server.ended[polite].stopped, server.ended[polite].exit_status) == (True, 7)
        assert (server.ended[stubborn].stopped, server.ended[stubborn].exit_status) == (True, None)
        assert not processes_of(polite) and not processes_of(stubborn)


async def test_a_cancellation_of_what_is_not_begun_leaves_no_status(tmp_path: Path) -> None:
    """It is queued behind one that fills the worker."""
    async with serving() as server, working(server, tmp_path, "--cpus", "1"):
        server.generous = 2
        first, second, third = (server.add("sleep 2") for _ in range(3))
        await until(lambda: first in server.started)
        await server.cancel(second)
        ended = await until(lambda: server.ended.get(second))
        assert first not in server.ended
        assert (ended.stopped, ended.exit_status, ended.ran_s) == (True, None, None)
        await until(lambda: {first, third} <= set(server.ended))


async def test_a_cancellation_that_comes_too_late_changes_nothing(tmp_path: Path) -> None:
    """The process had ended by itself, and the worker had not looked yet."""
    async with serving() as server, working(server, tmp_path) as hand:
        gate = tmp_path / "gate"
        key = server.add(f"while [ ! -e {gate} ]; do sleep 0.02; done; exit 5")
        await until(lambda: key in server.started)
        os.kill(hand.pid, signal.SIGSTOP)
        gate.touch()
        await until(lambda: not processes_of(key))
        await server.cancel(key)
        os.kill(hand.pid, signal.SIGCONT)
        ended = await until(lambda: server.ended.get(key))
        assert (ended.stopped, ended.exit_status) == (False, 5)


async def test_without_a_socket_heartbeats_go_by_post_and_bring_cancellations(tmp_path: Path) -> None:
    async with serving(heartbeat_s=0.3) as server:
        server.without_sockets = True
        async with working(server, tmp_path):
            key = server.add("sleep 1000")
            await until(lambda: key in server.started)
            await server.cancel(key)
            ended = await until(lambda: server.ended.get(key))
            assert ended.stopped and ended.exit_status == -15


async def test_a_socket_that_breaks_is_replaced(tmp_path: Path) -> None:
    async with serving(heartbeat_s=0.5) as server, working(server, tmp_path):
        key = server.add("sleep 1000")
        await until(lambda: key in server.started)
        server.cut_sockets()
        before = server.log.count("socket")
        await until(lambda: server.log.count("socket") > before)
        await until(lambda: server._sockets[server.held[key]].closed is False)
        await server.cancel(key)
        await until(lambda: key in server.ended)


async def test_while_the_server_is_away_work_goes_on_and_is_told_afterwards(tmp_path: Path) -> None:
    async with serving() as server, working(server, tmp_path):
        gate = tmp_path / "gate"
        keys = [server.add(f"while [ ! -e {gate} ]; do sleep 0.02; done; echo {n}; exit {n}") for n in (3, 4)]
        await until(lambda: all(key in server.started for key in keys))
        server.away = True
        server.cut_sockets()
        gate.touch()
        await until(lambda: not any(processes_of(key) for key in keys))
        assert not server.ended
        server.away = False
        await until(lambda: len(server.ended) == 2)
        assert [server.ended[key].exit_status for key in keys] == [3, 4]
        assert all(server.output(key) or server.ended[key].stdout for key in keys)


async def test_an_answer_that_is_lost_does_no_harm(tmp_path: Path) -> None:
    """The ends were taken, and what was claimed with them goes back, since the worker does not say that it has it."""
    async with serving(heartbeat_s=0.5) as server, working(server, tmp_path):
        server.lose_answers = 2
        keys = [server.add("sleep 0.1") for _ in range(6)]
        await until(lambda: server.lose_answers == 0)

        def lost() -> set[object]:
            latest = server.heartbeats[-1]
            told = {(one.id, one.attempt) for one in latest.held}
            return {key for key in server.held if key not in told} if latest.number >= 2 else set()

        async def put_back() -> None:
            for key in list(server.held):
                if key in lost():
                    del server.held[key]
                    keys.remove(key)

        while any(key not in server.ended for key in keys):
            await put_back()
            await until(lambda: lost() or all(key in server.ended for key in keys))
        assert {server.ended[key].exit_status for key in keys} == {0}


async def test_a_server_that_forgot_its_worker_gets_a_new_one(tmp_path: Path) -> None:
    """What it ran is somebody else's by now."""
    async with serving(heartbeat_s=0.3) as server, working(server, tmp_path):
        key = server.add("trap '' TERM; while :; do sleep 0.1; done")
        await until(lambda: key in server.started)
        server.forgotten.add(server.workers[0].id)
        await until(lambda: len(server.workers) == 2)
        assert server.workers[0].id != server.workers[1].id
        await until(lambda: not processes_of(key))
        assert key not in server.ended
        fresh = server.add("echo again")
        await until(lambda: fresh in server.ended)


async def test_what_was_taken_away_is_stopped_and_not_reported(tmp_path: Path) -> None:
    async with serving(heartbeat_s=0.3) as server, working(server, tmp_path):
        key = server.add("sleep 1000")
        await until(lambda: key in server.started)
        server.taken_away.add(key)
        await until(lambda: not processes_of(key))
        fresh = server.add("true")
        await until(lambda: fresh in server.ended)
        await until(lambda: not server.heartbeats[-1].held)
        assert key not in server.ended


async def test_an_exclusive_task_is_dead_before_its_lease_is_over(tmp_path: Path) -> None:
    """Cut off from the server; another task, which is not exclusive, goes on."""
    async with serving(lease_s=4, heartbeat_s=0.5) as server, working(server, tmp_path):
        alone = server.add("trap '' TERM; while :; do sleep 0.1; done", exclusive=True, grace_s=1)
        other = server.add("sleep 1000")
        await until(lambda: {alone, other} <= set(server.started))
        server.away = True
        server.cut_sockets()
        await until(lambda: not processes_of(alone), patience_s=4)
        assert processes_of(other)
        server.away = False
        ended = await until(lambda: server.ended.get(alone))
        assert "lease" in ended.message and ended.exit_status == -9


async def test_an_exclusive_task_goes_on_while_heartbeats_are_answered(tmp_path: Path) -> None:
    async with serving(lease_s=2, heartbeat_s=0.3) as server, working(server, tmp_path):
        key = server.add("sleep 4", exclusive=True, grace_s=30)
        ended = await until(lambda: server.ended.get(key))
        assert ended.exit_status == 0


async def test_the_keeper_stops_an_exclusive_task_of_a_frozen_worker(tmp_path: Path) -> None:
    async with serving(lease_s=3, heartbeat_s=0.5) as server, working(server, tmp_path) as hand:
        key = server.add("sleep 1000", exclusive=True)
        await until(lambda: key in server.started)
        os.kill(hand.pid, signal.SIGSTOP)
        await until(lambda: not processes_of(key), patience_s=6)
        os.kill(hand.pid, signal.SIGCONT)
        await until(lambda: key in server.ended)


async def test_a_worker_that_was_frozen_asks_what_is_still_its_own(tmp_path: Path) -> None:
    """Its task ended meanwhile and is somebody else's by now: it beats before it reports."""
    async with serving(lease_s=1.5, heartbeat_s=0.3) as server, working(server, tmp_path) as hand:
        gate = tmp_path / "gate"
        key = server.add(f"while [ ! -e {gate} ]; do sleep 0.02; done")
        await until(lambda: key in server.started)
        os.kill(hand.pid, signal.SIGSTOP)
        gate.touch()
        beats, seen = len(server.heartbeats), len(server.log)
        await until(lambda: len(processes_of(key)) == 0)
        server.taken_away.add(key)
        await _past_the_lease(1.5)
        os.kill(hand.pid, signal.SIGCONT)
        await until(lambda: len(server.heartbeats) > beats)
        fresh = server.add("true")
        await until(lambda: fresh in server.ended)
        first = next(word for word in server.log[seen:] if word in ("beat", "heartbeat", "report"))
        assert first in ("beat", "heartbeat")
        assert key not in server.ended


async def _past_the_lease(lease_s: float) -> None:
    began = time.monotonic()
    await until(lambda: time.monotonic() - began > lease_s + 0.3)


async def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    async with serving() as server:
        server.away = True
        hand = Hand(server, tmp_path)
        try:
            await until(lambda: "away" in hand.said())
            server.away = False
            key = server.add("echo here")
            await until(lambda: key in server.ended)
            hand.send(signal.SIGTERM)
            assert await hand.ended() == 0
        finally:
            if hand.keeper.poll() is None:
                hand.keeper.kill()
                hand.keeper.wait()
