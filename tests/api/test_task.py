"""Swarm tasks over HTTP, as people use them."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest

from tests.api.conftest import Apis, Json, eventually
from tests.api.swarming import TASKS, one, state_of, submit, worker

NDJSON = {"Content-Type": "application/x-ndjson"}


async def test_a_graph_is_stored_whole_and_opens_as_its_tasks_succeed(api: Apis) -> None:
    """A diamond whose edges are told from both sides, by names that exist in the request alone."""
    async with api() as a:
        ids = await submit(
            a.admin,
            {"ref": "top", "command": ["true"], "continuations": ["left", "right"]},
            {"ref": "left", "command": ["true"], "continuations": ["end"]},
            {"ref": "right", "command": ["true"]},
            {"ref": "end", "command": "echo done", "depends_on": ["right"]},
        )
        assert [await state_of(a.admin, id) for id in ids] == ["available", "inactive", "inactive", "inactive"]
        w = await worker(a)
        rounds = []
        while works := await w.claim():
            rounds.append({ids.index(work["id"]) for work in works})
            await w.end(*works)
        assert rounds == [{0}, {1, 2}, {3}]
        tree = (await a.admin.get(f"{TASKS}/{ids[0]}/tree")).body
        assert (len(tree["items"]), tree["complete"]) == (4, True)
        assert {node["state"] for node in tree["items"]} == {"terminated"}


@pytest.mark.parametrize(
    ("tasks", "code"),
    [
        ([{"ref": "a", "command": "x", "continuations": ["a"]}], "cycle"),
        ([{"ref": "a", "command": "x", "depends_on": ["b"]}, {"ref": "b", "depends_on": ["a"]}], "cycle"),
        ([{"ref": "a", "command": "x", "depends_on": ["nobody"]}], "unknown_ref"),
        ([{"ref": "a", "command": "x"}, {"ref": "a", "command": "y"}], "duplicate_ref"),
        ([{"command": "x", "continuations": [str(uuid4())]}], "not_found"),
        ([{"command": "x", "depends_on": [str(uuid4())]}], "not_found"),
        ([{"command": "x", "comand": "y"}], "invalid"),
        ([{"command": []}], "invalid"),
        ([{"command": "x", "requested_resources": {"cpus": -1}}], "invalid"),
        ([{"command": "x", "requested_resources": {"gpus": 1.5}}], "invalid"),
        ([{"command": "x", "env": {"A": None}}], "invalid"),
        ([{"command": "x\u0000"}], "invalid"),
        ([{"command": "x", "concurrency_limit": 3}], "invalid"),
        ([{"start_after": "2030-01-01T00:00:00Z"}], "invalid"),
        ([{"command": "x", "max_retry_count": 0}], "invalid"),
        ([{"command": "x", "state": "running"}], "invalid"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_of_the_request_is_stored(
    api: Apis, tasks: list[Json], code: str
) -> None:
    async with api() as a:
        answer = await a.admin.post(TASKS, {"tasks": [{"command": ["true"]}, *tasks]})
        assert (answer.status in (400, 404, 409, 422), answer.code) == (True, code)
        assert (await a.admin.get(TASKS)).body["items"] == []
        assert (await a.admin.get(f"{TASKS}/statistics")).body["total"] == 0


async def test_a_circle_is_told_by_the_names_that_its_sender_knows(api: Apis) -> None:
    async with api() as a:
        old = await one(a.admin, state="inactive")
        tasks = [
            {"ref": "a", "command": "x", "depends_on": [old]},
            {"ref": "b", "command": "x", "depends_on": ["a"], "continuations": [old]},
        ]
        told = (await a.admin.post(TASKS, {"tasks": tasks})).body["error"]["message"]
        assert told.startswith("These continuations make a circle: ")
        circle = told.removeprefix("These continuations make a circle: ").removesuffix(".").split(" → ")
        assert circle[0] == circle[-1] and set(circle) == {"a", "b", old}


async def test_a_large_graph_comes_line_by_line(api: Apis) -> None:
    async with api() as a:
        lines = [
            {"ref": str(n), "command": ["true"], "depends_on": [str(n + 1)] if n < 1_499 else []} for n in range(1_500)
        ]
        body = "\n".join(map(json.dumps, lines)).encode()
        made = await a.admin.ask("POST", TASKS, data=body, headers=NDJSON)
        assert (made.status, made.body["count"], made.body["edges"]) == (201, 1_500, 1_499)
        assert (made.body["available"], made.body["ids"]) == (1, [])
        broken = await a.admin.ask("POST", TASKS, data=body + b'\n{"command": 1}', headers=NDJSON)
        assert (broken.status, broken.body["error"]["problems"][0]["line"]) == (422, 1_501)
        assert (await a.admin.get(f"{TASKS}/statistics")).body["total"] == 1_500
        empty = await a.admin.ask("POST", TASKS, data=b"\n\n", headers=NDJSON)
        assert empty.status == 400


async def test_the_same_graph_sent_twice_is_one(api: Apis) -> None:
    async with api() as a:
        body = {"tasks": [{"command": "x"}, {"command": "y"}]}
        first = await a.admin.post(TASKS, body, key="k1")
        again = await a.admin.post(TASKS, body, key="k1")
        assert (again.status, again.body, again.headers["Idempotent-Replayed"]) == (201, first.body, "true")
        other = await a.admin.post(TASKS, {"command": "z"}, key="k1")
        assert (other.status, other.code) == (409, "key_reused")
        lines = b'{"command": "x"}\n{"command": "y"}\n'
        streams = [await a.admin.ask("POST", TASKS, data=lines, headers=NDJSON, key="k2") for _ in range(2)]
        assert streams[0].body == streams[1].body
        both = await asyncio.gather(*(a.admin.post(TASKS, body, key="k3") for _ in range(5)))
        assert len({json.dumps(one.body) for one in both}) == 1
        assert (await a.admin.get(f"{TASKS}/statistics")).body["total"] == 6


async def test_a_list_has_the_fields_the_filters_and_the_pages_that_are_asked_for(api: Apis) -> None:
    async with api() as a:
        await submit(a.admin, *({"command": "x", "group": "g", "labels": {"n": str(n % 2)}} for n in range(7)))
        await one(a.admin, name="lonely", state="inactive")
        page = (await a.admin.get(f"{TASKS}?state=available&fields=id,max_termination_time,requested_resources")).body
        assert len(page["items"]) == 7
        assert set(page["items"][0]) == {"id", "max_termination_time", "requested_resources"}
        for query, count in {
            "group=g": 7, "label=n=1": 3, "label=n=9": 0, "name=lonely": 1, "state=inactive": 1,
            "state=inactive&state=available": 8, "group=g&state=inactive": 0, "failed=true": 0, "held=true": 0,
        }.items():  # fmt: skip
            assert len((await a.admin.get(f"{TASKS}?{query}&limit=500")).body["items"]) == count, query
        seen: list[str] = []
        cursor = ""
        while True:
            part = (await a.admin.get(f"{TASKS}?limit=3&oldest=true{cursor}")).body
            seen += [item["id"] for item in part["items"]]
            if part["next_cursor"] is None:
                break
            cursor = f"&cursor={part['next_cursor']}"
        assert seen == sorted(seen) and len(set(seen)) == 8
        for wrong in ("fields=nothing", "cursor=x", "label=n", "state=lost", "limit=0"):
            assert (await a.admin.get(f"{TASKS}?{wrong}")).status in (400, 422), wrong


async def test_continuations_are_added_and_removed_while_the_graph_runs(api: Apis) -> None:
    async with api() as a:
        first, second, third = await submit(
            a.admin, {"command": "x"}, {"command": "y", "state": "inactive"}, {"command": "z", "state": "inactive"}
        )
        w = await worker(a)
        works = await w.claim()
        added = await a.admin.post(f"{TASKS}/{first}/add_continuations", {"continuations": [second, third]})
        assert (added.status, set(added.body["continuations"])) == (200, {second, third})
        removed = await a.admin.post(f"{TASKS}/{first}/remove_continuations", {"continuations": [third]})
        assert removed.status == 200
        assert [await state_of(a.admin, id) for id in (second, third)] == ["inactive", "available"]
        circle = await a.admin.post(f"{TASKS}/{second}/add_continuations", {"continuations": [second]})
        assert (circle.status, circle.code) == (400, "cycle")
        late = await a.admin.post(f"{TASKS}/{first}/add_continuations", {"continuations": [third]})
        assert (late.status, late.code) == (409, "conflict")
        assert "available" in late.body["error"]["message"]
        await w.end(*works)
        assert await state_of(a.admin, second) == "available"
        over = await a.admin.post(f"{TASKS}/{first}/add_continuations", {"continuations": [second]})
        assert over.status == 409


async def test_waiting_for_what_succeeded_already_is_not_waiting(api: Apis) -> None:
    """`--after` names a task that ended a moment ago."""
    async with api() as a:
        done, bad = await submit(a.admin, {"command": "x"}, {"command": "y"})
        w = await worker(a)
        works = {work["id"]: work for work in await w.claim()}
        await w.end(works[done])
        await w.end(works[bad], exit_status=1)
        assert await state_of(a.admin, await one(a.admin, depends_on=[done])) == "available"
        refused = await a.admin.post(TASKS, {"command": "x", "depends_on": [bad]})
        assert (refused.status, refused.code) == (409, "conflict")


async def test_what_failed_is_done_again_by_new_tasks(api: Apis) -> None:
    """An ended task stays what it is."""
    async with api() as a:
        ids = await submit(
            a.admin,
            {"ref": "a", "command": "x", "group": "g"},
            {"ref": "b", "command": "y", "group": "g", "depends_on": ["a"]},
            {"ref": "c", "command": "z", "group": "g", "depends_on": ["b"], "labels": {"k": "v"}},
        )
        w = await worker(a)
        await w.end(*await w.claim())
        await w.end(*await w.claim(), exit_status=3)
        assert [await state_of(a.admin, id) for id in ids] == ["terminated", "terminated", "cancelled"]
        done = (await a.admin.post(f"{TASKS}/retry", {"group": "g"}, key="again")).body
        assert (done["count"], set(done["ids"])) == (2, set(ids[1:]))
        assert (await a.admin.post(f"{TASKS}/retry", {"group": "g"}, key="again")).body == done
        new = [done["ids"][id] for id in ids[1:]]
        assert [await state_of(a.admin, id) for id in new] == ["available", "inactive"]
        shown = (await a.admin.get(f"{TASKS}/{new[1]}")).body
        assert (shown["retry_of"], shown["depends_on"], shown["labels"]) == (ids[2], [new[0]], {"k": "v"})
        await w.end(*await w.claim())
        await w.end(*await w.claim())
        assert [await state_of(a.admin, id) for id in new] == ["terminated", "terminated"]


async def test_users_change_their_own_tasks_and_managers_everybodys(api: Apis) -> None:
    async with api() as a:
        ada, bob = await a.user("ada"), await a.user("bob")
        mine, his = await one(ada, env={"SECRET": "s"}), await one(bob)
        refused = await ada.post(f"{TASKS}/cancel", {"ids": [mine, his]})
        assert (refused.status, refused.code) == (403, "forbidden")
        assert (await ada.ask("PATCH", f"{TASKS}/{his}", {"state": "cancelled"})).status == 403
        assert (await bob.get(f"{TASKS}/{mine}")).body["env"] == {"SECRET": "***"}
        assert (await ada.get(f"{TASKS}/{mine}")).body["env"] == {"SECRET": "s"}
        assert (await a.admin.get(f"{TASKS}?fields=env,user")).body["items"][1]["env"] == {"SECRET": "s"}
        assert (await ada.post(f"{TASKS}/cancel", {"all": True})).body == {"cancelled": 1, "pending": 0}
        assert await state_of(a.admin, his) == "available"
        stranger = await a.user("eve", role=None)
        assert (await stranger.get(f"{TASKS}/{mine}")).status == 404
        await a.admin.made("/api/projects", {"name": "other"})
        assert (await a.admin.get(f"/api/projects/other/tasks/{mine}")).status == 404
        assert (await a.admin.post("/api/projects/other/tasks/cancel", {"ids": [his]})).status == 404


async def test_an_ended_task_can_be_deleted_and_no_other(api: Apis) -> None:
    async with api() as a:
        id = await one(a.admin)
        assert (await a.admin.delete(f"{TASKS}/{id}")).status == 409
        await a.admin.post(f"{TASKS}/cancel", {"ids": [id]})
        assert (await a.admin.delete(f"{TASKS}/{id}")).status == 204
        assert (await a.admin.get(f"{TASKS}/{id}")).status == 404
        assert (await a.admin.get(f"{TASKS}/statistics")).body["states"]["cancelled"] == 0


async def test_what_matches_everything_that_is_said_is_cancelled_and_nothing_else(api: Apis) -> None:
    async with api() as a:
        tasks = [
            {"command": "x", "name": name, "labels": {"size": size}, "group": group, "state": state}
            for name in ("a", "b") for size in ("s", "l") for group in ("g", "h") for state in ("available", "inactive")
        ]  # fmt: skip
        await submit(a.admin, *tasks)
        wishes: list[tuple[Json, int]] = [
            ({"name": "a", "labels": {"size": "s"}, "group": "g", "state": ["inactive"]}, 1),
            ({"name": "a", "labels": {"size": "s"}}, 3),
            ({"labels": {"size": "l"}, "state": ["available"]}, 4),
            ({"labels": {"size": "s", "colour": "red"}}, 0),
            ({"group": "nobody"}, 0),
            ({"state": ["terminated", "cancelled"]}, 0),
            ({"state": [], "group": "g"}, 0),
            ({"ids": [], "all": True}, 0),
            ({"name": "b"}, 6),
            ({"all": True}, 2),
        ]
        for wish, count in wishes:
            assert (await a.admin.post(f"{TASKS}/cancel", wish)).body == {"cancelled": count, "pending": 0}, wish


@pytest.mark.parametrize("body", [{}, {"ids": [], "all": False}, {"labels": {}}])
async def test_who_does_not_say_which_tasks_are_meant_cancels_none(api: Apis, body: Any) -> None:
    async with api() as a:
        id = await one(a.admin)
        answer = await a.admin.post(f"{TASKS}/cancel", body)
        assert answer.status == 400 or answer.body == {"cancelled": 0, "pending": 0}
        assert await state_of(a.admin, id) == "available"


async def test_statistics_know_how_it_goes(api: Apis) -> None:
    async with api() as a:
        fields = {"group": "g", "labels": {"k": "v"}, "max_retry_count": 2}
        await submit(a.admin, *({"command": "x", **fields} for _ in range(10)), {"command": None, "labels": {"k": "w"}})
        w = await worker(a)
        works = await w.claim(6)
        await w.end(*works[:4], cpu_s=2.0, memory_bytes=5e6)
        await w.end(works[4], exit_status=7)
        seen = (await a.admin.get(f"{TASKS}/statistics?group=g")).body
        assert seen["states"] | {"cancelled": 0} == {
            "inactive": 0, "available": 5, "running": 1, "pending_cancellation": 0, "terminated": 4, "cancelled": 0,
        }  # fmt: skip
        assert (seen["total"], seen["succeeded"], seen["exit_codes"]) == (10, 4, {"0": 4, "7": 1})
        assert seen["run_time"]["count"] == 5 and seen["run_time"]["p50"] == pytest.approx(0.5, rel=0.05)
        assert seen["cpu"]["mean"] == pytest.approx(2.0) and seen["memory"]["p99"] == pytest.approx(5e6, rel=0.05)
        assert seen["throughput"] > 0 and seen["seconds_left"] > 0
        labelled = (await a.admin.get(f"{TASKS}/statistics?label=k=v")).body
        assert [labelled[name] for name in ("total", "states", "exit_codes", "run_time")] == [
            seen[name] for name in ("total", "states", "exit_codes", "run_time")
        ]
        assert (await a.admin.get(f"{TASKS}/statistics?label=k=w")).body["succeeded"] == 1
        assert (await a.admin.get(f"{TASKS}/statistics")).body["total"] == 11
        assert (await a.admin.get(f"{TASKS}/statistics?group=nobody")).body["total"] == 0
        own = (await a.admin.get(f"{TASKS}/{works[4]['id']}/statistics")).body
        assert (own["exit_codes"], own["states"]) == ({"7": 1}, {"available": 1})
        assert (await a.admin.get(f"{TASKS}/statistics?group=g&label=a=b")).status == 400


async def test_who_waits_is_answered_when_all_have_ended(api: Apis) -> None:
    async with api() as a:
        await submit(a.admin, {"command": "x", "group": "g"}, {"command": "y", "group": "g"})
        w = await worker(a)
        early = await a.admin.get(f"{TASKS}/wait?group=g&timeout_s=0.1")
        assert early.body["states"]["available"] == 2
        waiting = asyncio.create_task(a.admin.get(f"{TASKS}/wait?group=g&timeout_s=30"))
        await w.end(*await w.claim())
        assert (await waiting).body["succeeded"] == 2


async def test_what_is_done_to_many_at_once_is_one_entry_of_the_journal(api: Apis) -> None:
    """With who asked for it; what a deadline did nobody asked for."""
    async with api() as a:
        ada = await a.user("ada")
        past = "2020-01-01T00:00:00Z"
        fields = {"command": "x", "group": "g", "labels": {"k": "v"}}
        await submit(ada, {"ref": "a", **fields}, fields, {"depends_on": ["a"], **fields})
        await ada.post(f"{TASKS}/cancel", {"labels": {"k": "v"}})
        await a.admin.post(f"{TASKS}/retry", {"group": "g"})
        await submit(ada, *({"command": "x", "name": "late", "deadline": past} for _ in range(2)))

        async def told() -> Json:
            items = (await ada.get("/api/projects/main/events")).body["items"]
            found = [(one["event"], one["by"], one["message"]) for one in items if one["kind"] == "task"]
            return found if len(found) == 5 else None

        assert await eventually(told, "the deadline has passed") == [
            ("Created", "ada", "3 tasks, 1 continuation"),
            ("CancelAsked", "ada", "3 asked for, 3 cancelled, 0 still running"),
            ("RetryAsked", "admin", "3 done again, 0 held ones may be claimed"),
            ("Created", "ada", "2 tasks, 0 continuations"),
            ("DeadlinePassed", "", "2 asked for, 2 cancelled, 0 still running"),
        ]
