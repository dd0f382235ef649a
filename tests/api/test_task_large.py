"""Graphs as large as people make them: long, wide, and two layers in which everybody waits for everybody."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable

import pytest

from tests.api.conftest import Api, Apis, Json
from tests.api.swarming import TASKS, Worker, held, worker

pytestmark = pytest.mark.xdist_group("large-graphs")

NDJSON = {"Content-Type": "application/x-ndjson"}
LINES_AT_ONCE = 100
MOST = 500
LAYER = [f"first-{n}" for n in range(1_000)]


async def load(api: Api, tasks: Iterable[Json]) -> Json:
    """Line by line, as a large graph is sent."""

    async def body() -> AsyncIterator[bytes]:
        lines: list[str] = []
        for task in tasks:
            lines.append(json.dumps({"command": ["true"], **task}))
            if len(lines) == LINES_AT_ONCE:
                yield "\n".join([*lines, ""]).encode()
                lines.clear()
                await asyncio.sleep(0)
        yield "\n".join(lines).encode()

    made = await api.admin.ask("POST", TASKS, data=body(), headers=NDJSON)
    assert made.status == 201, made.body
    return made.body


def chain(length: int, command_each: int = 1) -> Iterable[Json]:
    """What is between those with a command are barriers."""
    return (
        {"ref": str(n), "depends_on": [str(n - 1)] if n else []} | ({"command": None} if n % command_each else {})
        for n in range(length)
    )


def two_layers() -> Iterable[Json]:
    """A million edges, and no barrier between."""
    return [*({"ref": name} for name in LAYER), *({"depends_on": LAYER} for _ in LAYER)]


async def work_off(by: Worker, exit_status: int = 0) -> list[int]:
    """Ends whatever there is, and claims in the same breath; how many came in each round."""
    rounds = []
    works = await by.claim(MOST)
    while works:
        rounds.append(len(works))
        ended = [{**held(work), "exit_status": exit_status} for work in works]
        told = await by.report(ended=ended, claim=by.claiming(MOST))
        assert told["refused"] == []
        works = told["tasks"]
    return rounds


async def states(api: Api) -> dict[str, int]:
    """Of the tasks themselves, which the figures have to agree with; and nobody waits for anybody any more."""
    async with api.context.database.connection() as connection:
        rows = await connection.fetch("SELECT state, count(*), sum(pending_dependency_count) FROM task GROUP BY state")
    found = {state: count for state, count, _ in rows}
    told = (await api.admin.get(f"{TASKS}/statistics")).body["states"]
    assert {state: count for state, count in told.items() if count} == found
    assert {state: left for state, _, left in rows if state != "cancelled" and left} == {}
    return found


async def test_a_chain_of_ten_thousand_opens_link_by_link(api: Apis) -> None:
    """A worker does each twentieth, and the server passes those between."""
    async with api() as a:
        made = await load(a, chain(10_000, command_each=20))
        assert (made["count"], made["edges"], made["available"]) == (10_000, 9_999, 1)
        assert await work_off(await worker(a)) == [1] * 500
        assert await states(a) == {"terminated": 10_000}


async def test_the_failure_of_the_first_link_cancels_the_other_9_999(api: Apis) -> None:
    async with api() as a:
        await load(a, chain(10_000))
        assert await work_off(await worker(a), exit_status=1) == [1]
        assert await states(a) == {"terminated": 1, "cancelled": 9_999}


async def test_one_opens_a_hundred_thousand_and_they_open_one(api: Apis) -> None:
    """All of the fan goes through the hands of one worker; what waits for it is there when the very last has ended."""
    async with api() as a:
        fan = ({"depends_on": ["first"], "continuations": ["last"]} for _ in range(100_000))
        made = await load(a, itertools.chain([{"ref": "first"}, {"ref": "last"}], fan))
        assert (made["count"], made["edges"], made["available"]) == (100_002, 200_000, 1)
        assert await work_off(await worker(a, cpus=1_000)) == [1, *[MOST] * 200, 1]
        assert await states(a) == {"terminated": 100_002}


async def test_two_layers_of_a_thousand_wait_for_each_other_without_a_barrier(api: Apis) -> None:
    """A million edges. The second layer is there when the whole first one has succeeded, and not before."""
    async with api() as a:
        made = await load(a, two_layers())
        assert (made["count"], made["edges"], made["available"]) == (2_000, 1_000_000, 1_000)
        assert await work_off(await worker(a, cpus=MOST)) == [MOST] * 4
        assert await states(a) == {"terminated": 2_000}


async def test_one_request_cancels_a_graph_of_a_million_edges(api: Apis) -> None:
    """While some of it runs: what their worker says of them later opens nothing, also where it is a success."""
    async with api() as a:
        await load(a, two_layers())
        w = await worker(a)
        works = await w.claim(10)
        told = await a.admin.post(f"{TASKS}/cancel", {"all": True})
        assert told.body == {"cancelled": 1_990, "pending": 10}
        await w.end(*works)
        assert await w.claim() == []
        assert await states(a) == {"terminated": 10, "cancelled": 1_990}
