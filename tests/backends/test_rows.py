"""Rows of a run's life, each driven over the API on machines of the dummy backend. ROWS.md says which is where."""

from typing import Any

import pytest

from stoker.core.ids import RunId
from tests.backends.conftest import PROJECT, Town, Towns

EVERY_MINUTE = "* * * * *"
YEARLY = "0 0 1 1 *"


async def rounds(one: Town, run: RunId, status: str, number: int) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        shown = await one.run(run)
        return shown if (shown["status"], shown["schedule"]["rounds"]) == (status, number) else None

    found: dict[str, Any] = await one.until(there, f"round {number} is {status}", lambda: one.story(run))
    return found


async def said(one: Town, run: RunId, sentence: str) -> None:
    async def told() -> bool:
        return any(sentence in message for _, message in await one.story(run))

    await one.until(told, sentence, lambda: one.story(run))


async def states(one: Town, run: RunId) -> list[str]:
    """One after the other, without repetitions."""
    told = [state for state, _ in await one.story(run)]
    return [state for at, state in enumerate(told) if at == 0 or told[at - 1] != state]


async def test_a_schedule_starts_a_round_when_its_time_comes_and_waits_again(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("true", schedule=EVERY_MINUTE)
        assert (await one.run(run))["status"] == "PENDING"
        assert await one.jobs(run) == []
        one.next_minute()
        shown = await rounds(one, run, "PENDING", 1)
        assert shown["finished_at"] is None
        assert [job["state"] for job in await one.jobs(run)] == ["DONE"]
        assert await states(one, run) == ["PENDING", "SUBMITTED", "PROVISIONING", "RUNNING", "TERMINATING", "PENDING"]
        assert (await one.ask(run, "trigger"))["outcome"] == "started"
        await rounds(one, run, "PENDING", 2)
        await one.ask(run, "stop", abort=False)
        assert (await one.run(run, "TERMINATED"))["termination_reason"] == "STOPPED_BY_USER"


async def test_a_schedule_of_every_minute_skips_what_a_job_of_three_minutes_overlaps(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 3", schedule=EVERY_MINUTE)
        one.next_minute()
        await rounds(one, run, "RUNNING", 1)
        for skipped in (1, 2):
            one.next_minute()

            async def so_often(skipped: int = skipped) -> bool:
                return sum("trigger skipped" in message for _, message in await one.story(run)) == skipped

            await one.until(so_often, f"{skipped} triggers were skipped", lambda: one.story(run))
        await rounds(one, run, "PENDING", 1)
        one.next_minute()
        await rounds(one, run, "RUNNING", 2)
        assert [job["round"] for job in await one.jobs(run)] == [1, 2]
        await one.ask(run, "stop", abort=True)


async def test_with_overlap_queue_one_trigger_waits_for_the_last_round_however_many_there_were(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1.5", schedule={"cron": EVERY_MINUTE, "overlap": "queue"})
        one.next_minute()
        await rounds(one, run, "RUNNING", 1)
        one.next_minute()
        await said(one, run, "trigger waits for the last round")
        one.next_minute()
        await rounds(one, run, "RUNNING", 2)
        await rounds(one, run, "PENDING", 2)
        await one.ask(run, "stop", abort=True)


async def test_triggers_that_passed_while_the_server_was_away_start_one_round(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("true", schedule=YEARLY)
        long_ago = f"UPDATE run SET trigger_at = trigger_at - 4e8, deadline_at = deadline_at - 4e8 WHERE id = '{run}'"
        await one.restarted(long_ago)
        shown = await rounds(one, run, "PENDING", 1)
        assert shown["schedule"]["next"]
        await said(one, run, "triggered late: it was due at 20")
        await one.ask(run, "stop", abort=False)
        await one.run(run, "TERMINATED")


async def test_a_run_whose_last_job_waits_again_is_submitted_again_and_goes_on(town: Towns) -> None:
    """One replica is done; the other has no machine, since somebody holds the run."""
    async with town(nodes=1) as one:
        run = await one.submit("sleep 0.5", replicas=2)
        await one.run(run, "RUNNING")
        await one.ask(run, "hold")
        shown = await one.run(run, "SUBMITTED")
        assert shown["counts"]["done"] == 1
        await one.ask(run, "release")
        assert (await one.run(run, "DONE"))["termination_reason"] == "ALL_JOBS_DONE"
        told = await states(one, run)
        assert told[:3] == ["SUBMITTED", "PROVISIONING", "RUNNING"]
        assert told[3:] == ["SUBMITTED", "PROVISIONING", "RUNNING", "TERMINATING", "DONE"]


async def test_a_run_whose_last_job_is_on_its_way_to_a_machine_is_provisioning_again(town: Towns) -> None:
    async with town(nodes=2) as one:
        await one.job(await one.submit("true"), "DONE")
        await one.behave(launch_delay="1h")
        run = await one.submit("sleep 0.5", replicas=2)
        await one.run(run, "RUNNING")
        await one.run(run, "PROVISIONING")
        assert (await states(one, run))[-2:] == ["RUNNING", "PROVISIONING"]
        await one.ask(run, "stop", abort=True)
        await one.run(run, "TERMINATED")


async def test_a_run_that_is_at_its_limit_is_terminated_and_did_not_fail(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1000", max_duration="0.3s")
        shown = await one.run(run, "TERMINATED")
        assert shown["termination_reason"] == "JOB_TERMINATED"
        assert [job["reason"] for job in await one.jobs(run)] == ["MAX_DURATION_EXCEEDED"]


async def test_when_one_job_fails_for_good_the_others_are_terminated_by_the_server(town: Towns) -> None:
    async with town() as one:
        groups = [{"commands": ["sleep 0.3", "exit 3"]}, {"commands": ["sleep 1000"]}]
        run = await one.submit(groups=groups)
        shown = await one.run(run, "FAILED")
        assert (shown["termination_reason"], shown["exit_code"]) == ("JOB_FAILED", 3)
        ended = [(job["state"], job["reason"]) for job in await one.jobs(run)]
        assert ended == [("FAILED", "CONTAINER_EXITED_WITH_ERROR"), ("TERMINATED", "TERMINATED_BY_SERVER")]


async def test_a_retry_is_over_when_its_duration_is_used_up(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("exit 4", retry={"on_events": ["error"], "duration": "40s"})
        await one.run(run, "PENDING")
        one.later(20)

        async def again() -> bool:
            return len(await one.jobs(run)) == 2 and (await one.run(run))["status"] == "PENDING"

        await one.until(again, "it failed again, within its time", lambda: one.jobs(run))
        one.later(40)
        shown = await one.run(run, "FAILED")
        assert (shown["termination_reason"], shown["exit_code"]) == ("RETRY_LIMIT_EXCEEDED", 4)
        assert [job["attempt"] for job in await one.jobs(run)] == [1, 2, 3]


async def test_a_replica_of_several_nodes_is_retried_in_place_while_the_other_runs_on(town: Towns) -> None:
    async with town(nodes=5) as one:
        run = await one.submit("sleep 1000", nodes=2, replicas=2, retry={"on_events": ["interruption"]})

        async def all_run() -> list[dict[str, Any]] | None:
            latest = [job for job in await one.jobs(run) if job["latest"]]
            return latest if len(latest) == 4 and {job["state"] for job in latest} == {"RUNNING"} else None

        before = await one.until(all_run, "four nodes run", lambda: one.jobs(run))
        lost = next(job for job in before if (job["replica"], job["node"]) == (1, 0))
        await one.strike(lost["instance_id"], "vanish")

        async def again() -> list[dict[str, Any]] | None:
            latest = await all_run()
            return latest if latest and latest[-1]["attempt"] == 2 else None

        after = await one.until(again, "the replica runs again", lambda: one.jobs(run))
        assert [(job["replica"], job["node"], job["attempt"]) for job in after] == [
            (0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 1, 2),
        ]  # fmt: skip
        reasons = {job["node"]: job["reason"] for job in await one.jobs(run) if not job["latest"]}
        assert reasons == {0: "INTERRUPTED_BY_NO_CAPACITY", 1: "TERMINATED_BY_SERVER"}
        assert await states(one, run) == ["SUBMITTED", "PROVISIONING", "RUNNING"], "it never waited"
        await one.ask(run, "stop", abort=True)


async def test_what_found_no_room_and_does_not_queue_is_retried_when_it_may(town: Towns) -> None:
    async with town(capacity=0) as one:
        run = await one.submit("true", on_no_capacity="fail", retry={"on_events": ["no-capacity"]})
        await one.run(run, "PENDING")
        await one.behave(capacity=1)
        one.later(20)
        await one.run(run, "DONE")
        ended = [(job["attempt"], job["reason"]) for job in await one.jobs(run)]
        assert ended == [(1, "FAILED_TO_START_DUE_TO_NO_CAPACITY"), (2, "DONE_BY_RUNNER")]


@pytest.mark.parametrize("abort", [False, True], ids=["stopped", "aborted"])
async def test_a_run_that_waits_for_its_retry_is_ended_at_once(town: Towns, abort: bool) -> None:
    async with town() as one:
        run = await one.submit("false", retry=True)
        await one.run(run, "PENDING")
        await one.ask(run, "stop", abort=abort)
        shown = await one.run(run, "TERMINATED")
        assert shown["termination_reason"] == ("ABORTED_BY_USER" if abort else "STOPPED_BY_USER")
        assert [job["state"] for job in await one.jobs(run)] == ["FAILED"]


async def test_a_thousand_runs_submitted_at_once_reach_their_end(town: Towns) -> None:
    async with town(cpu=4) as one:
        await one.fleet("0..50", blocks=4)
        task = {"type": "task", "commands": ["true"]}
        made = await one.admin.made(f"{PROJECT}/runs", {"configurations": [task] * 1_000})
        assert len(made["items"]) == 1_000

        async def over() -> bool:
            (row,) = await one.rows("SELECT count(*) FROM run WHERE state = 'DONE'")
            return bool(row["count"] == 1_000)

        await one.until(over, "all are done", lambda: one.rows("SELECT state, count(*) FROM run GROUP BY state"))
        assert 1 <= len(await one.instances()) <= 50


async def test_a_run_whose_machine_is_taken_back_on_its_way_waits_for_another_one(town: Towns) -> None:
    """Alone it is tried again by itself; beside a replica that waits, in place."""
    async with town(nodes=1, launch_delay="1h") as one:
        run = await one.submit("true", replicas=2, retry={"on_events": ["interruption"]})
        await one.run(run, "PROVISIONING")
        lost = next(job["instance_id"] for job in await one.jobs(run) if job["state"] == "PROVISIONING")
        await one.behave(launch_delay="0s")
        await one.strike(lost, "preempt", notice="0s")
        await one.run(run, "DONE")
        assert (await states(one, run))[:3] == ["SUBMITTED", "PROVISIONING", "SUBMITTED"]

        await one.behave(launch_delay="1h")
        await one.retire_all()
        run = await one.submit("true", retry={"on_events": ["interruption"]})
        job = await one.job(run, "PROVISIONING")
        await one.behave(launch_delay="0s")
        await one.strike(job["instance_id"], "preempt", notice="0s")
        await one.run(run, "DONE")
        assert (await states(one, run))[:4] == ["SUBMITTED", "PROVISIONING", "PENDING", "SUBMITTED"]
