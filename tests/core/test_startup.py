"""Nodes of a replica begin together: none before all have their machines, and in the order that was asked for."""

import pytest

from stoker.core.commitment import Outcome
from stoker.core.job import deadline
from stoker.core.job_facts import Exited, Placed, RunnerAccepted, S, StartTask, SubmitJob, TaskAccepted
from stoker.core.limits import LAUNCH_S
from stoker.core.policy import StartupOrder
from tests.core.living import ALWAYS, Life, machine


def begun(outcome: Outcome) -> list[int]:
    """The nodes whose job is given to their runners by this step."""
    return sorted(wish.record.node for wish in outcome.wishes if isinstance(wish.effect, SubmitJob))


def there(life: Life, node: int, *, shim: bool = True) -> list[int]:
    """A node's machine has taken its task; who begins by that?"""
    placed = begun(life.tell(life.job(0, node), Placed(machine(node), (0,), shim=shim)))
    return placed if not shim else placed + begun(life.tell(life.job(0, node), TaskAccepted()))


def runs(life: Life, node: int) -> list[int]:
    return begun(life.tell(life.job(0, node), RunnerAccepted()))


def test_no_node_begins_before_all_have_their_machines() -> None:
    life = Life(nodes=3)
    assert [there(life, 2), there(life, 0), there(life, 1)] == [[], [], [0, 1, 2]]
    assert [runs(life, node) for node in (1, 0, 2)] == [[], [], []], "nobody begins twice"


def test_a_job_of_one_node_waits_for_nobody() -> None:
    life = Life()
    (wish,) = life.tell(life.job(), Placed(machine(0), (0,))).wishes
    assert wish.effect == StartTask(alone=True)
    assert begun(life.tell(life.job(), TaskAccepted())) == [0]


def test_a_node_of_several_is_only_given_its_task_at_first() -> None:
    life = Life(nodes=2)
    (wish,) = life.tell(life.job(), Placed(machine(0), (0,))).wishes
    assert wish.effect == StartTask(alone=False)


def test_the_master_runs_before_the_workers_begin() -> None:
    life = Life(nodes=3, startup_order=StartupOrder.MASTER_FIRST)
    assert [there(life, node) for node in range(3)] == [[], [], [0]]
    assert runs(life, 0) == [1, 2]
    assert runs(life, 1) == []


def test_the_workers_run_before_the_master_begins() -> None:
    life = Life(nodes=3, startup_order=StartupOrder.WORKERS_FIRST)
    assert [there(life, node) for node in range(3)] == [[], [], [1, 2]]
    assert [runs(life, 1), runs(life, 2)] == [[], [0]]


def test_a_worker_that_was_done_before_anybody_saw_it_run_holds_nobody_up() -> None:
    life = Life(nodes=2, startup_order=StartupOrder.WORKERS_FIRST)
    there(life, 0)
    there(life, 1)
    assert begun(life.tell(life.job(0, 1), Exited(0))) == [0]


def test_machines_without_a_shim_are_there_when_they_are_placed() -> None:
    life = Life(nodes=2)
    assert [there(life, 0, shim=False), there(life, 1)] == [[], [0, 1]]


def test_each_replica_begins_by_itself() -> None:
    life = Life(nodes=2, replicas=2)
    there(life, 0)
    assert begun(life.tell(life.job(1, 0), Placed(machine(7), (0,)), TaskAccepted())) == []
    assert there(life, 1) == [0, 1]


@pytest.mark.parametrize("order", list(StartupOrder))
def test_a_new_try_gathers_anew(order: StartupOrder) -> None:
    life = Life(nodes=2, startup_order=order, retry=ALWAYS).starts()
    life.tell(life.job(0, 1), Exited(1))
    while life.run.state.name == "PENDING":
        assert life.rings()
    assert life.states() == [S.SUBMITTED, S.SUBMITTED]
    assert there(life, 0) == []
    assert there(life, 1) != []


def test_what_a_node_waits_for_the_others_is_not_taken_from_its_runners_time() -> None:
    life = Life(nodes=2)
    there(life, 0)
    policy = life.run.policy
    others_s = LAUNCH_S + policy.waiting_instance_s
    assert deadline(life.job(0, 0)) == policy.waiting_runner_s + others_s
    there(life.wait(500.0), 1)
    assert deadline(life.job(0, 0)) == 500.0 + policy.waiting_runner_s + others_s
