"""Workers that do nothing, for the server to be measured: each claims, says started, says ended, and claims again.

A life is three requests: a batch is claimed with one, said to be started with the next and to have ended with the one
after, while the same requests do that for the batches before and behind it. They show tokens, keep their leases by
heartbeats and come in two classes, of which one has no scratch space and gets only half of the tasks.
"""

import json
import multiprocessing as mp
import random
import re
import selectors
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from multiprocessing.synchronize import Barrier
from typing import Any, Final
from uuid import UUID, uuid4

from bench.swarm.ground import Swarm
from bench.swarm.wire import Wire, head, told

BATCH: Final = 50
WORKERS: Final = 8
"""Of each process."""
PROCESSES: Final = 2
PATIENCE_S: Final = 300.0
POLL_S: Final = 0.2
KINDS: Final = 4096
"""How many different lengths of a run there are; which one a task gets is left to chance."""

_WORK: Final = re.compile(rb'"id": ?"([0-9a-f-]{36})", ?"attempt": ?(\d+)')
_CLEAN: Final = re.compile(rb'\{"refused": ?\[\]')


@dataclass(frozen=True)
class Told:
    """What all of them said: how often each kind of an end."""

    seconds: float
    lives: int
    requests: int
    cpu_s: float
    ends: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class Kind:
    ran_s: float
    cpu_s: float
    memory_bytes: float

    def said(self) -> bytes:
        return b'"exit_status":0,"ran_s":%.6f,"cpu_s":%.6f,"memory_bytes":%.0f' % (
            self.ran_s, self.cpu_s, self.memory_bytes,
        )  # fmt: skip


def kinds() -> list[Kind]:
    """From milliseconds to hours, as people's tasks are; rounded as they are said."""
    dice = random.Random(11)
    made = []
    for _ in range(KINDS):
        ran_s = round(dice.lognormvariate(1.0, 2.0), 6)
        made.append(Kind(ran_s, round(ran_s * dice.uniform(0.1, 4.0), 6), float(int(dice.lognormvariate(18.0, 1.5)))))
    return made


@dataclass(frozen=True)
class Pass:
    """What a worker has from its registration."""

    id: UUID
    token: str
    heartbeat_s: float
    scratch: bool


def register(swarm: Swarm, number: int) -> list[Pass]:
    client, passes = swarm.stand.client, []
    for at in range(number):
        id, scratch = uuid4(), at % 2 == 0
        total = {"amounts": _amounts(2 * BATCH, scratch=scratch)}
        body = {"id": str(id), "name": f"played-{at}", "total": total}
        told = client.post(client.at("workers"), body)
        passes.append(Pass(id, told["token"], told["heartbeat_s"], scratch))
    return passes


def lead(swarm: Swarm, number: int) -> Told:
    """So many tasks, which are there already, through their whole lives; then the workers leave."""
    context = mp.get_context("fork")
    passes = register(swarm, WORKERS * PROCESSES)
    done, barrier, answers = context.Value("q", 0), context.Barrier(PROCESSES + 1), context.SimpleQueue()
    processes = []
    for at in range(PROCESSES):
        mine = passes[at * WORKERS : (at + 1) * WORKERS]
        arguments = (swarm.stand.client.url, swarm.stand.client.project, mine, number, done, barrier, answers)
        processes.append(context.Process(target=_process, args=arguments, daemon=True))
    for process in processes:
        process.start()
    barrier.wait(60)
    begun = time.monotonic()
    said = [answers.get() for _ in processes]
    for process in processes:
        process.join(30)
    if wrong := [one for one in said if isinstance(one, str)]:
        raise ValueError(wrong[0])
    ends: Counter[int] = Counter()
    for one in said:
        ends.update(one.ends)
    seconds = max(one.seconds for one in said) - begun
    return Told(seconds, ends.total(), sum(one.requests for one in said), sum(one.cpu_s for one in said), ends)


def _process(
    url: str, project: str, passes: Sequence[Pass], number: int, done: Any, barrier: Barrier, answers: Any
) -> None:
    try:
        players = [_Player(url, project, one) for one in passes]
        load = _Load(players, number, done)
        barrier.wait(60)
        cpu = time.process_time()
        load.run()
        cpu = time.process_time() - cpu
        for one in players:
            one.leave()
        answers.put(Told(load.last, 0, load.requests, cpu, load.ends))
    except (OSError, ValueError, TimeoutError) as error:
        answers.put(f"{type(error).__name__}: {error}")


class _Player:
    """One worker on one connection. `fresh` were claimed by the latest request, `begun` said to be started by it."""

    def __init__(self, url: str, project: str, mine: Pass) -> None:
        self.wire, self.mine, self.number = Wire(url), mine, 0
        at = f"/api/projects/{project}/workers/{mine.id}"
        self._report, self._claim = (head("POST", f"{at}/{what}", mine.token) for what in ("report", "claim"))
        self._heartbeat, self._leave = head("POST", f"{at}/heartbeat", mine.token), head("DELETE", at, mine.token)
        self._room = json.dumps({"amounts": _amounts(BATCH, scratch=mine.scratch)}).encode()
        self.fresh: list[tuple[bytes, bytes]] = []
        self.begun: list[tuple[bytes, bytes]] = []
        self.ending = 0
        self.due = time.monotonic() + mine.heartbeat_s
        self.beating = False

    def speak(self, said: Sequence[bytes]) -> int:
        """The next request. `said`: what becomes of those that end with it. Returns how many do."""
        if time.monotonic() >= self.due:
            self._beat()
            return 0
        self.number += 1
        claim = b'"number":%d,"most":%d,"room":%b' % (self.number, BATCH, self._room)
        if not self.fresh and not self.begun:
            self.wire.send(self._claim, b'{%b,"wait_s":%.1f}' % (claim, POLL_S))
            self.ending = 0
            return 0
        pairs = zip(self.begun, said, strict=True)
        ended = b",".join([b'{"id":"%b","attempt":%b,%b}' % (*held, how) for held, how in pairs])
        started = b",".join([b'{"id":"%b","attempt":%b,"ago_s":0}' % one for one in self.fresh])
        self.wire.send(self._report, b'{"ended":[%b],"started":[%b],"claim":{%b}}' % (ended, started, claim))
        self.ending = len(self.begun)
        self.begun, self.fresh = self.fresh, []
        return self.ending

    def hear(self, body: bytes) -> int:
        """Returns how many lives are over with this answer."""
        if self.beating:
            self.beating = False
            if told(body).get("gone"):
                raise ValueError(f"tasks were taken from a worker that renews its lease: {body[:300]!r}")
            return 0
        if self.ending and not _CLEAN.match(body):
            raise ValueError(f"ends were refused: {body[:300]!r}")
        self.fresh = _WORK.findall(body)
        over, self.ending = self.ending, 0
        return over

    def leave(self) -> None:
        self.wire.ask(self._leave)
        self.wire.close()

    def _beat(self) -> None:
        held = b",".join([b'{"id":"%b","attempt":%b}' % one for one in chain(self.fresh, self.begun)])
        self.wire.send(self._heartbeat, b'{"held":[%b],"number":%d}' % (held, self.number))
        self.due, self.beating = time.monotonic() + self.mine.heartbeat_s, True


class _Load:
    def __init__(self, players: Sequence[_Player], number: int, done: Any) -> None:
        self._players, self._number, self._done = players, number, done
        self._said, self._dice = [one.said() for one in kinds()], random.Random()
        self.ends: Counter[int] = Counter()
        self.requests, self.last = 0, 0.0

    def run(self) -> None:
        deadline, silent = time.monotonic() + PATIENCE_S, set[_Player]()
        with selectors.DefaultSelector() as selector:
            for player in self._players:
                selector.register(player.wire, selectors.EVENT_READ, player)
                self._speak(player)
            # Whoever has asked for something is heard out: an answer that nobody reads may bring tasks.
            while len(silent) < len(self._players):
                for key, _ in selector.select(1.0):
                    one: _Player = key.data
                    body = one.wire.receive()
                    if body is None:
                        continue
                    self._count(one.hear(body))
                    if self._done.value >= self._number:
                        silent.add(one)
                    else:
                        self._speak(one)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{self._done.value} of {self._number} lives in {PATIENCE_S:.0f} s")

    def _speak(self, player: _Player) -> None:
        drawn = [int(self._dice.random() * KINDS) for _ in player.begun]
        # A heartbeat comes first when it is due, and then nothing ends with this request.
        if player.speak([self._said[one] for one in drawn]):
            self.ends.update(drawn)
        self.requests += 1

    def _count(self, over: int) -> None:
        if over:
            with self._done.get_lock():
                self._done.value += over
            self.last = time.monotonic()


def _amounts(cpus: int, *, scratch: bool) -> dict[str, int]:
    return {"cpus": cpus} | ({"scratch": cpus} if scratch else {})
