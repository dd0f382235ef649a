"""Rows of a job's life, each driven over the API on machines of the dummy backend. ROWS.md says which is where."""

from collections.abc import Iterator
from typing import Any

import pytest

from stoker.backends.dummy.agent import SimulatedRunner
from stoker.backends.dummy.simulated import Simulated
from stoker.core import job_end
from stoker.core.errors import Unavailable
from stoker.core.ids import RunId
from stoker.engine import order, timer, watch
from stoker.runner.proc import alive, has_in_environment, pids
from stoker.runner.reaper import JOB_VARIABLE
from stoker.wire.runner import JobOrder
from stoker.wire.shim import TaskInfo, TaskOrder
from tests.backends.conftest import Town, Towns


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In life a machine that hangs is called unreachable after a quarter of a minute."""
    monkeypatch.setattr(watch, "POLL_S", 1.0)
    monkeypatch.setattr(watch, "SILENT_AFTER_S", 0.3)
    yield


async def unreachable(one: Town, run: RunId) -> dict[str, Any]:
    async def shown() -> dict[str, Any] | None:
        (job,) = (await one.run(run))["jobs"]
        return job if job["unreachable_since"] else None

    found: dict[str, Any] = await one.until(shown, "it is unreachable", lambda: one.jobs(run))
    return found


async def half_placed(one: Town) -> tuple[RunId, list[dict[str, Any]]]:
    """Of two nodes one has its machine and waits in PULLING; the machine of the other takes an hour."""
    await one.job(await one.submit("true"), "DONE")
    await one.behave(launch_delay="1h")
    run = await one.submit("sleep 1000", nodes=2)

    async def half() -> list[dict[str, Any]] | None:
        jobs: list[dict[str, Any]] = (await one.run(run))["jobs"]
        jobs.sort(key=lambda job: str(job["status"]))
        return jobs if [job["status"] for job in jobs] == ["PROVISIONING", "PULLING"] else None

    return run, await one.until(half, "one node waits for the other", lambda: one.jobs(run))


async def test_each_state_of_a_job_is_told_in_its_order(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("true")
        await one.run(run, "DONE")
        told = (await one.admin.get(f"/api/projects/main/runs/{run}/events")).body["items"]
        moves = [(event["source"], event["target"]) for event in told if event["kind"] == "job"]
        passed = [target for source, target in moves if source != target]
        assert passed == ["SUBMITTED", "PROVISIONING", "PULLING", "RUNNING", "TERMINATING", "DONE"]


async def test_a_provider_that_refuses_ends_a_job_that_does_not_queue(town: Towns) -> None:
    async with town(lie="fail") as one:
        run = await one.submit("true", on_no_capacity="fail")
        shown = await one.run(run, "FAILED")
        assert shown["termination_reason"] == "JOB_FAILED"
        (job,) = shown["jobs"]
        assert (job["status"], job["termination_reason"]) == ("FAILED", "FAILED_TO_START_DUE_TO_NO_CAPACITY")
        await one.empty()


async def test_a_job_that_waits_ends_with_its_run(town: Towns) -> None:
    async with town(capacity=0) as one:
        run = await one.submit("true")
        assert (await one.run(run, "SUBMITTED"))["jobs"][0]["status"] == "SUBMITTED"
        await one.ask(run, "stop", abort=False)
        (job,) = (await one.run(run, "TERMINATED"))["jobs"]
        assert (job["status"], job["termination_reason"]) == ("TERMINATED", "TERMINATED_BY_USER")


async def test_an_aborted_job_is_aborted_and_its_processes_are_gone(town: Towns) -> None:
    """It would not hear of a stop for an hour."""
    async with town(real=True) as one:
        run = await one.submit("trap '' TERM; echo up; while :; do sleep 0.1; done", stop_duration="1h")
        job = await one.job(run, "RUNNING")
        mark = f"{JOB_VARIABLE}={job['id']}".encode()

        async def found() -> list[int]:
            return [pid for pid in pids() if alive(pid) and has_in_environment(pid, mark)]

        await one.until(found, "its process runs")
        await one.ask(run, "stop", abort=True)
        shown = await one.run(run, "TERMINATED")
        assert shown["termination_reason"] == "ABORTED_BY_USER"
        assert [(job["status"], job["termination_reason"]) for job in shown["jobs"]] == [("ABORTED", "ABORTED_BY_USER")]
        assert await found() == []
        await one.retire_all()


@pytest.mark.usefixtures("impatient")
async def test_a_silent_machine_changes_nothing_until_its_provider_says_that_it_is_gone(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1000")
        job = await one.job(run, "RUNNING")
        await one.strike(job["instance_id"], "hang")
        assert (await unreachable(one, run))["status"] == "RUNNING"
        await one.strike(job["instance_id"], "resume")

        async def heard() -> bool:
            return (await one.jobs(run))[0]["unreachable_since"] is None

        await one.until(heard, "it is heard again", lambda: one.jobs(run))
        await one.strike(job["instance_id"], "hang")
        await unreachable(one, run)
        await one.strike(job["instance_id"], "vanish")
        (ended,) = (await one.run(run, "FAILED"))["jobs"]
        assert ended["termination_reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        await one.empty()


@pytest.mark.usefixtures("impatient")
async def test_a_machine_of_a_provider_that_is_silent_for_too_long_is_given_up(
    town: Towns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In life after twenty minutes."""
    for module in (job_end, timer):
        monkeypatch.setattr(module, "PROVIDER_SILENCE_S", 1.0)
    async with town() as one:
        run = await one.submit("sleep 1000")
        job = await one.job(run, "RUNNING")
        await one.strike(job["instance_id"], "hang")
        await one.job(run, "TERMINATING")
        assert (await one.jobs(run))[0]["reason"] == "INSTANCE_UNREACHABLE"
        await one.strike(job["instance_id"], "resume")
        await one.job(run, "FAILED")


async def test_a_runner_that_never_answers_is_given_up(town: Towns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task is there, its runner is not: the job stays PULLING for ten minutes and not longer."""

    async def silent(runner: SimulatedRunner, order: JobOrder) -> None:
        raise Unavailable("The runner does not answer.")

    def alone(machine: Simulated, order: TaskOrder) -> TaskInfo:
        return submit(machine, order.model_copy(update={"job": None}))

    submit = Simulated.submit
    monkeypatch.setattr(Simulated, "submit", alone)
    monkeypatch.setattr(SimulatedRunner, "run", silent)
    async with town() as one:
        run = await one.submit("true")
        await one.job(run, "PULLING")
        one.later(500)
        assert (await one.job(run, "PULLING"))["reason"] is None
        one.later(101)
        shown = await one.run(run, "FAILED")
        assert [job["termination_reason"] for job in shown["jobs"]] == ["WAITING_RUNNER_LIMIT_EXCEEDED"]


async def test_a_job_that_finds_no_machine_within_its_start_timeout_is_given_up(town: Towns) -> None:
    async with town(capacity=0) as one:
        run = await one.submit("true", start_timeout="0.3s")
        shown = await one.run(run, "FAILED")
        assert [job["termination_reason"] for job in shown["jobs"]] == ["WAITING_INSTANCE_LIMIT_EXCEEDED"]


async def test_a_job_that_writes_more_log_than_it_may_is_ended(town: Towns, monkeypatch: pytest.MonkeyPatch) -> None:
    """In life ten gigabytes."""
    monkeypatch.setattr(order, "LOG_QUOTA_BYTES", 100_000)
    async with town(real=True) as one:
        run = await one.submit("yes | head -c 1000000", "sleep 1000")
        shown = await one.run(run, "FAILED")
        (job,) = shown["jobs"]
        assert (job["status"], job["termination_reason"]) == ("FAILED", "LOG_QUOTA_EXCEEDED")
        log = await one.admin.get(f"/api/projects/main/runs/{run}/logs")
        assert 0 < len(log.body) <= 100_000
        await one.retire_all()


async def test_a_setup_that_fails_is_told_apart_from_the_commands(town: Towns) -> None:
    async with town() as one:
        shown = await one.run(await one.submit("true", setup=["exit 9"]), "FAILED")
        (job,) = shown["jobs"]
        assert (job["termination_reason"], job["exit_code"]) == ("SETUP_FAILED", 9)


@pytest.mark.parametrize("notice", ["0s", "30s"], ids=["without notice", "with notice"])
async def test_a_preemption_of_a_node_that_waits_for_the_others_ends_all_of_them(town: Towns, notice: str) -> None:
    async with town(nodes=2) as one:
        run, (coming, waiting) = await half_placed(one)
        await one.strike(waiting["instance"], "preempt", notice=notice)
        shown = await one.run(run, "FAILED")
        ended = {job["id"]: job["termination_reason"] for job in shown["jobs"]}
        assert ended[waiting["id"]] == "INTERRUPTED_BY_NO_CAPACITY"
        assert ended[coming["id"]] == "TERMINATED_BY_SERVER"
        await one.instance(waiting["instance"], "TERMINATED")
        await one.retire_all()
