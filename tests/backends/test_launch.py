"""Runs on machines that are launched for them: up, through every misfortune of a provider, and gone without a trace."""

import asyncio
from uuid import UUID

import pytest

from stoker.backends.base import Order
from stoker.core.ids import InstanceId
from stoker.core.resources import Capacity
from stoker.runner.proc import alive, has_in_environment, pids
from stoker.runner.reaper import JOB_VARIABLE
from stoker.wire.dummy import Behaviour
from tests.backends.conftest import Town, Towns


def behave(town: Town, **said: object) -> None:
    town.steering.change("box", None, None, Behaviour.model_validate(said))


def preempt(town: Town, id: UUID, notice_s: float) -> None:
    town.steering.preempt(town.steering.machine(str(id)), notice_s)


@pytest.mark.parametrize("real", [False, True], ids=["simulated", "real"])
async def test_a_run_is_run_on_a_machine_that_is_launched_for_it(town: Towns, real: bool) -> None:
    async with town(real=real) as one:
        run = await one.submit("echo hello", "exit 7")
        job = await one.job(run, "FAILED")
        assert (job["reason"], job["exit_code"]) == ("CONTAINER_EXITED_WITH_ERROR", 7)
        (row,) = await one.instances()
        assert (row["state"], row["offer"], row["location"], row["price"]) == ("IDLE", "box", "here", 1.0)
        assert row["handle"] == f"dummy-{row['id'].hex[-6:]}"
        (host,) = await one.rows("SELECT address, ip FROM host WHERE instance_id = $1", row["id"])
        assert host["address"].startswith("unix:" if real else "dummy:")
        assert host["ip"] == "127.77.0.1"
        log = await one.admin.get(f"/api/projects/main/runs/{run}/logs")
        assert b"hello" in log.body
        await one.retire_all()
        left = list((one.settings.home / "dummy" / "machines").iterdir())
        assert left == []


async def test_two_real_machines_of_one_host_run_processes_that_bind_the_same_port(town: Towns) -> None:
    """Nodes of a run listen on a port that they agreed upon, each at the address of its own machine."""
    async with town(real=True) as one:
        first, second = await one.submit("sleep 100"), await one.submit("sleep 100")
        jobs = [await one.job(run, "RUNNING") for run in (first, second)]
        ids = [job["instance_id"] for job in jobs]
        assert ids[0] != ids[1]
        ips = await one.rows("SELECT ip FROM host WHERE instance_id = ANY($1)", ids)
        servers = [await asyncio.start_server(lambda *_: None, row["ip"], 47_123) for row in ips]
        for server in servers:
            server.close()
        await one.retire_all()


async def test_a_machine_that_vanishes_takes_its_processes_and_its_run_with_it(town: Towns) -> None:
    async with town(real=True) as one:
        run = await one.submit("sleep 1000")
        job = await one.job(run, "RUNNING")
        mark = f"{JOB_VARIABLE}={job['id']}".encode()

        async def found() -> list[int]:
            return [pid for pid in pids() if alive(pid) and has_in_environment(pid, mark)]

        processes = await one.until(found, "its process runs")
        await one.steering.vanish(one.steering.machine(str(job["instance_id"])))
        assert not [pid for pid in processes if alive(pid)]
        job = await one.job(run, "FAILED")
        assert job["reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        await one.empty()


@pytest.mark.parametrize("notice_s", [0.0, 30.0], ids=["without notice", "with notice"])
@pytest.mark.parametrize("state", ["SUBMITTED", "PROVISIONING", "RUNNING", "TERMINATING"])
async def test_a_preemption_in_every_state_of_a_job_ends_with_nothing_left(
    town: Towns, state: str, notice_s: float
) -> None:
    """SUBMITTED: reserved, and its provider has not answered; PROVISIONING: on its way; then as it runs, as it ends."""
    slow: dict[str, float] = {"SUBMITTED": {"answer_delay": 0.5}, "PROVISIONING": {"launch_delay": 600.0}}.get(
        state, {}
    )
    async with town(**slow) as one:
        run = await one.submit("sleep 1000")
        if state == "TERMINATING":
            job = await one.job(run, "RUNNING")
            # It hangs as it is told to stop, so the job stays as it is until its machine is gone.
            machine = one.steering.machine(str(job["instance_id"]))
            await one.steering.hang(machine, on=True)
            stopped = await one.admin.post(f"/api/projects/main/runs/{run}/stop", {"abort": False})
            assert stopped.status == 200, stopped.body

        async def there() -> bool:
            job = (await one.jobs(run))[-1]
            return job["state"] == state and job["instance_id"] is not None and bool(one.steering.dummy.machines)

        await one.until(there, f"the job is {state}", lambda: one.jobs(run))
        (machine,) = one.steering.dummy.machines.values()
        behave(one, launch_delay=0, answer_delay=0)
        preempt(one, machine.id, notice_s)
        if state == "TERMINATING" and notice_s:
            # The provider keeps its word only later; until then nobody knows what became of the job.
            assert (await one.job(run, "TERMINATING"))["state"] == "TERMINATING"
            await one.steering.vanish(one.steering.machine(str(machine.id)))
        if state == "SUBMITTED":
            # What was to be launched is gone, and it is launched anew elsewhere.
            await one.instance(machine.id, "TERMINATED")
            job = (await one.jobs(run))[0]
            assert job["reason"] in (None, "INTERRUPTED_BY_NO_CAPACITY")
        else:
            job = await one.job(run, "FAILED", "TERMINATED")
            assert job["reason"] == ("TERMINATED_BY_USER" if state == "TERMINATING" else "INTERRUPTED_BY_NO_CAPACITY")
        await one.instance(machine.id, "TERMINATED")
        await one.retire_all()


async def test_a_preempted_run_runs_again_on_free_capacity_at_once(town: Towns) -> None:
    """Half a second after the notice is the limit of the bench; here it only has to be no matter of a period."""
    async with town(nodes=3) as one:
        run = await one.submit("sleep 1000", retry=True, replicas=2)

        async def running() -> list[dict[str, object]] | None:
            latest = [job for job in await one.jobs(run) if job["latest"]]
            return latest if [job["state"] for job in latest] == ["RUNNING", "RUNNING"] else None

        before = await one.until(running, "both replicas run", lambda: one.jobs(run))
        await one.job(await one.submit("true"), "DONE")
        began_at = asyncio.get_running_loop().time()
        preempt(one, before[0]["instance_id"], 30.0)

        async def elsewhere() -> bool:
            jobs = await running()
            return jobs is not None and jobs[0]["instance_id"] != before[0]["instance_id"]

        await one.until(elsewhere, "both run again", lambda: one.jobs(run))
        assert asyncio.get_running_loop().time() - began_at < 2.0
        await one.instance(before[0]["instance_id"], "TERMINATED")


async def test_a_provider_that_says_created_and_forgets_is_found_out(town: Towns) -> None:
    async with town(lie="forget") as one:
        run = await one.submit("true")
        job = await one.job(run, "FAILED")
        assert job["reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        await one.empty()
        (row,) = await one.instances()
        assert row["failed_at"] is not None


async def test_a_provider_that_creates_and_says_failed_leaves_nothing(town: Towns) -> None:
    """The run waits; the offer that failed rests, and is not asked a hundred times a second."""
    async with town(lie="fail") as one:
        run = await one.submit("true")

        async def refused() -> bool:
            return any(row["failed_at"] is not None for row in await one.instances())

        await one.until(refused, "a launch was refused", one.instances)
        assert (await one.jobs(run))[-1]["state"] == "SUBMITTED"
        assert len(await one.instances()) <= 2
        behave(one, lie="none")
        await one.job(run, "DONE")
        await one.retire_all()
        assert 2 <= len(await one.instances()) <= 4


async def test_a_gang_that_misses_one_machine_gives_the_others_back_and_waits_as_a_whole(town: Towns) -> None:
    """One machine is idle and a second one has to be launched, which the provider refuses. What is there must not be
    kept from others for half an hour by a half that cannot begin, and `max_parallel` must not count it as running."""
    async with town(nodes=2) as one:
        await one.job(await one.submit("true"), "DONE")
        behave(one, lie="fail")
        pair = await one.submit("true", nodes=2, replicas=2, max_parallel=1)

        async def refused() -> bool:
            return any(row["failed_at"] is not None for row in await one.instances())

        await one.until(refused, "a launch was refused", one.instances)

        async def given_back() -> bool:
            return all(job["state"] == "SUBMITTED" and job["instance_id"] is None for job in await one.jobs(pair))

        await one.until(given_back, "all nodes wait without a machine", lambda: one.jobs(pair))
        assert {job["attempt"] for job in await one.jobs(pair)} == {1}, "it did nothing wrong"
        behave(one, lie="none")

        async def done() -> bool:
            return all(job["state"] == "DONE" for job in await one.jobs(pair))

        await one.until(done, "all nodes are done", lambda: one.jobs(pair))
        await one.retire_all()


async def test_two_gangs_that_each_hold_what_the_other_needs_do_not_block_each_other(town: Towns) -> None:
    """Two machines are idle. A gang of three takes both and waits for a third, which is refused; behind it waits a gang
    of two, for which there is room. Nothing is held by a half, so it runs; and so does the larger one later."""
    async with town(nodes=3) as one:
        first = [await one.submit("sleep 1"), await one.submit("sleep 1")]
        for run in first:
            await one.job(run, "DONE")
        assert len([row for row in await one.instances() if row["state"] == "IDLE"]) == 2
        behave(one, lie="fail")
        gangs = [await one.submit("true", nodes=3), await one.submit("true", nodes=2)]

        async def one_is_done() -> bool:
            return all(job["state"] == "DONE" for job in await one.jobs(gangs[1]))

        await one.until(one_is_done, "the smaller one had all it needs", lambda: one.jobs(gangs[1]))
        behave(one, lie="none")

        async def other_is_done() -> bool:
            return all(job["state"] == "DONE" for job in await one.jobs(gangs[0]))

        await one.until(other_is_done, "the larger one had it too", lambda: one.jobs(gangs[0]))
        await one.retire_all()


async def test_an_offer_without_capacity_is_not_launched_until_there_is_some(town: Towns) -> None:
    async with town(capacity=0) as one:
        run = await one.submit("true")
        why = await one.admin.get(f"/api/projects/main/runs/{run}/why")
        assert why.status == 200, why.body
        assert await one.instances() == []
        behave(one, capacity=1)
        await one.job(run, "DONE")


async def test_a_machine_that_never_comes_up_is_given_up_and_destroyed(town: Towns) -> None:
    async with town(lie="stillborn") as one:
        run = await one.submit("true")
        job = await one.job(run, "PROVISIONING")
        # The limit is ten minutes; here it has passed.
        query = "UPDATE instance SET provisioning_limit_s = 0, deadline_at = 0, version = version + 1 WHERE id = $1"
        await one.rows(query, job["instance_id"])
        one.context.engine.wake("timer")
        job = await one.job(run, "FAILED")
        assert job["reason"] == "INTERRUPTED_BY_NO_CAPACITY"
        (row,) = await one.instances()
        assert "no shim answered" in row["message"]
        await one.empty()


async def test_a_machine_that_hangs_while_its_job_stops_is_waited_for(town: Towns) -> None:
    async with town() as one:
        run = await one.submit("sleep 1000", stop_duration_s=0.1)
        job = await one.job(run, "RUNNING")
        machine = one.steering.machine(str(job["instance_id"]))
        await one.steering.hang(machine, on=True)
        await one.admin.post(f"/api/projects/main/runs/{run}/stop", {"abort": False})
        job = await one.job(run, "TERMINATING")

        async def removing() -> bool:
            return bool((await one.jobs(run))[-1]["cleanup"] == "remove")

        await one.until(removing, "its grace is over", lambda: one.jobs(run))
        assert one.steering.machine(str(machine.id)).hanging
        await one.steering.hang(one.steering.machine(str(machine.id)), on=False)
        job = await one.job(run, "TERMINATED")
        assert job["reason"] == "TERMINATED_BY_USER"
        await one.retire_all()


async def test_a_slow_destroy_is_waited_for_until_it_is_confirmed(town: Towns) -> None:
    async with town(destroy_delay=0.5) as one:
        await one.job(await one.submit("true"), "DONE")
        (row,) = await one.instances()
        await one.delete(row["id"])
        await one.instance(row["id"], "TERMINATING")
        assert one.steering.dummy.machines
        await one.empty()


async def test_an_orphan_is_destroyed_and_shown(town: Towns) -> None:
    """A machine with our tag and no row: what a database that was restored does not know any more."""
    async with town() as one:
        id = InstanceId(one.context.engine.new_id())
        await one.steering.dummy.launch(Order(id, "box", "here", False, Capacity(2, 4096)))

        async def told() -> list[dict[str, object]]:
            return await one.rows("SELECT event, note FROM journal WHERE id = $1", id)

        (line,) = await one.until(told, "it is shown")
        assert line["event"] == "OrphanDestroyed"
        assert f"dummy-{id.hex[-6:]} at dummy" in str(line["note"])
        assert one.steering.dummy.machines == {}


async def test_nothing_is_placed_on_a_machine_that_is_ill_until_it_is_well(town: Towns) -> None:
    """Its disk is nearly full, as its shim says. What runs there goes on; what comes waits, and is told for what."""
    async with town(nodes=1, cpu=2) as one:
        first = await one.submit("sleep 1000")
        job = await one.job(first, "RUNNING")
        machine, _ = one.steering.dummy._answering(InstanceId(job["instance_id"]))
        machine.examined("its disk is nearly full")
        path = f"/api/projects/main/instances/{job['instance_id']}"

        async def shown() -> bool:
            return bool((await one.admin.get(path)).body["health"] == "its disk is nearly full")

        await one.until(shown, "it is shown", one.instances)
        await one.admin.post(f"/api/projects/main/runs/{first}/stop", {"abort": True})
        await one.job(first, "ABORTED")
        second = await one.submit("true")
        why = (await one.admin.get(f"/api/projects/main/runs/{second}/why")).body
        assert "is unhealthy: its disk is nearly full" in why["sentence"], why
        assert (await one.jobs(second))[0]["state"] == "SUBMITTED"
        machine.examined("")
        await one.job(second, "DONE")
        assert (await one.admin.get(path)).body["health"] == ""
        await one.retire_all()


async def test_two_hundred_simulated_machines_run_two_hundred_jobs_at_once(town: Towns) -> None:
    async with town(nodes=200) as one:
        runs = await asyncio.gather(*(one.submit("sleep 3") for _ in range(200)))
        for run in runs:
            await one.job(run, "DONE")
        assert len(await one.instances()) > 100
        await one.retire_all()
