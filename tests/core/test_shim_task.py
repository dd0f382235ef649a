"""The table of the shim task, and its promise: whatever was taken is given back once, in reverse."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.machine import Effect, Event, Refused
from stoker.core.reason import JobReason
from stoker.core.shim_task import (
    HOOKS,
    LIVE,
    SHIM_TASK,
    DevicesTaken,
    DirectoriesMade,
    Exited,
    Forget,
    Hook,
    HookFailed,
    ImageMissing,
    ImageReady,
    NetworkReady,
    Perform,
    Port,
    PullProgressed,
    RemovalAsked,
    Runtime,
    S,
    ShimTask,
    Started,
    Submitted,
    TerminateAsked,
    Undo,
    UndoFailed,
    Undone,
    VolumesMounted,
    submit,
    wish,
)

TASK = submit(UUID(int=1), Runtime.DOCKER, 0.0)
PORTS = (Port(22, 40001),)
START = (
    DirectoriesMade(),
    VolumesMounted(),
    DevicesTaken(("gpu-0", "gpu-1")),
    ImageReady(),
    NetworkReady(PORTS),
    Started("c0ffee"),
)


def walk(task: ShimTask, *events: Event) -> tuple[ShimTask, list[Effect]]:
    effects: list[Effect] = []
    for event in events:
        step = SHIM_TASK.step(task, event, 1.0)
        task, effects = step.record, effects + list(step.effects)
    return task, effects


def after(hooks: int) -> ShimTask:
    """A task that has so many hooks of its start behind it."""
    return walk(TASK, *START[:hooks])[0]


def released(task: ShimTask) -> ShimTask:
    """The shim does what is wished for until nothing is."""
    while task.ending:
        (effect,) = wish(task)
        assert isinstance(effect, Undo)
        task, _ = walk(task, Undone(effect.hook))
    return task


def test_each_pair_is_a_row_or_stale_or_on_this_list() -> None:
    """A removal before the end, and news of hooks that this task cannot have reached yet."""
    never = {
        "PENDING": "RemovalAsked Exited ImageMissing PullProgressed ImageReady NetworkReady Started",
        "PREPARING": "RemovalAsked Exited PullProgressed NetworkReady Started",
        "PULLING": "RemovalAsked Exited NetworkReady Started",
        "CREATING": "RemovalAsked Exited",
        "RUNNING": "RemovalAsked",
    }
    assert SHIM_TASK.refused() == {(state, event) for state, events in never.items() for event in events.split()}


def test_no_row_stands_behind_one_that_always_holds() -> None:
    assert SHIM_TASK.shadowed() == []
    assert SHIM_TASK.finished == {S.TERMINATED}


def test_a_start_performs_the_hooks_in_their_written_order() -> None:
    """directories, volumes, devices, image, network, container; and the states a server sees meanwhile."""
    task, seen, wished = TASK, [TASK.state], list(wish(TASK))
    for event in START:
        task, effects = walk(task, event)
        seen.append(task.state)
        wished += effects
    assert wished == [Perform(hook) for hook in HOOKS]
    assert seen == ["pending", "pending", "pending", "preparing", "creating", "creating", "running"]
    assert (task.gpu_ids, task.ports, task.container_id) == (("gpu-0", "gpu-1"), PORTS, "c0ffee")
    assert wish(task) == ()


def test_an_image_that_is_not_present_is_pulled_and_its_progress_is_shown() -> None:
    task, effects = walk(after(3), ImageMissing(), PullProgressed(10, 100), PullProgressed(60, 100))
    assert (task.state, task.pulled_bytes, task.pull_total_bytes, effects) == (S.PULLING, 60, 100, [])
    task, effects = walk(task, ImageReady())
    assert (task.state, effects) == (S.CREATING, [Perform(Hook.NETWORK)])


def test_the_process_runtime_skips_pulling() -> None:
    """Without containers there is no image, whatever a confused performer says."""
    task = replace(after(3), runtime=Runtime.PROCESS)
    task, _ = walk(task, ImageMissing())
    assert task.state is S.PREPARING
    task, _ = walk(task, ImageReady())
    assert task.state is S.CREATING


@pytest.mark.parametrize("hooks", range(7))
def test_submitted_again_it_is_the_same_task(hooks: int) -> None:
    """The answer to the submission was lost and the server submits again: no second container."""
    step = SHIM_TASK.step(after(hooks), Submitted(), 9.0)
    assert (step.record, step.effects, step.row) == (after(hooks), (), None)


@pytest.mark.parametrize("hooks", range(1, 6))
def test_news_of_a_hook_told_twice_counts_once(hooks: int) -> None:
    """After a restart the shim performs the last hook again, and the one before had told its end already."""
    assert SHIM_TASK.step(after(hooks), START[hooks - 1], 9.0).row is None


@pytest.mark.parametrize("hooks", range(7))
def test_terminate_releases_everything_it_held_in_reverse(hooks: int) -> None:
    """Stopped at any moment, also in the middle of a hook: that one is undone too."""
    task, effects = walk(after(hooks), TerminateAsked(5.0))
    undone = []
    while task.state is not S.TERMINATED:
        (effect,) = effects
        assert isinstance(effect, Undo)
        assert wish(task) == (effect,), "a shim that restarts here goes on with the same"
        undone.append(effect.hook)
        task, effects = walk(task, Undone(effect.hook))
    assert undone == list(reversed(HOOKS[: min(hooks + 1, 6)]))
    assert (effects, task.begun, task.gpu_ids, task.ports, wish(task)) == ([], (), (), (), ())
    assert task.reason is JobReason.TERMINATED_BY_SERVER


def test_terminate_is_idempotent_and_an_abort_cuts_the_grace() -> None:
    """Asked to stop within five minutes, then again, then the user aborts; then the stop is repeated late."""
    asked = [TerminateAsked(grace_s) for grace_s in (300.0, 300.0, 0.0, 9.0)]
    task, effects = walk(after(6), *asked)
    assert effects == [Undo(Hook.CONTAINER, 300.0), Undo(Hook.CONTAINER, 0.0)]
    ended = released(task)
    assert SHIM_TASK.step(ended, TerminateAsked(), 9.0).row is None


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Exited(0), JobReason.DONE_BY_RUNNER),
        (Exited(3, "boom"), JobReason.CONTAINER_EXITED_WITH_ERROR),
        (Exited(137, oom=True), JobReason.OUT_OF_MEMORY),
    ],
)
def test_an_exit_is_kept_with_its_code_and_last_lines(event: Exited, reason: JobReason) -> None:
    task = released(walk(after(6), event)[0])
    assert (task.state, task.reason, task.exit_code) == (S.TERMINATED, reason, event.exit_code)
    assert task.message == event.message


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_that_fails_ends_the_task_with_its_own_reason(hook: Hook) -> None:
    """A volume that cannot be mounted is not an error of the container."""
    task = released(walk(after(HOOKS.index(hook)), HookFailed(hook, "no"))[0])
    assert (task.state, task.message, task.exit_code) == (S.TERMINATED, "no", None)
    expected = {Hook.VOLUMES: JobReason.VOLUME_ERROR, Hook.NETWORK: JobReason.PORTS_BINDING_FAILED}
    assert task.reason is expected.get(hook, task.reason)


def test_the_outcome_does_not_change_while_it_is_released() -> None:
    """Terminated by the server: the exit by SIGTERM that follows is noted, the reason stays."""
    task, _ = walk(after(6), TerminateAsked(10.0), Exited(143), Exited(1), HookFailed(Hook.CONTAINER, "late"))
    assert (task.state, task.reason, task.exit_code) == (S.RUNNING, JobReason.TERMINATED_BY_SERVER, 143)


def test_a_failed_cleanup_is_tried_again_and_shown() -> None:
    """A volume is busy: the task is not terminated before it is unmounted, and the exit code stands."""
    task, _ = walk(after(6), Exited(0), Undone(Hook.CONTAINER), Undone(Hook.NETWORK), Undone(Hook.IMAGE))
    task, effects = walk(task, Undone(Hook.DEVICES), UndoFailed(Hook.VOLUMES, "busy"), UndoFailed(Hook.VOLUMES, "busy"))
    assert (task.state, task.cleanup_error, effects[-1]) == (S.RUNNING, "busy", Undo(Hook.VOLUMES, 0.0, 2))
    task = released(task)
    assert (task.state, task.cleanup_error, task.exit_code) == (S.TERMINATED, "", 0)


def test_removal_is_refused_before_terminated() -> None:
    """The disk is where a restarted server finds the exit code: nobody deletes it early."""
    for hooks in range(7):
        for task in (after(hooks), walk(after(hooks), TerminateAsked())[0]):
            with pytest.raises(Refused):
                walk(task, RemovalAsked())
    ended = released(walk(after(6), Exited(0))[0])
    assert walk(ended, RemovalAsked())[1] == [Forget()]


EVENTS: list[Event] = [
    *START,
    Submitted(),
    ImageMissing(),
    PullProgressed(1),
    Exited(0),
    Exited(1),
    TerminateAsked(3.0),
    TerminateAsked(),
    RemovalAsked(),
    *(event for hook in HOOKS for event in (HookFailed(hook, "no"), Undone(hook), UndoFailed(hook, "busy"))),
]


@given(st.lists(st.integers(0, 99), max_size=60), st.sampled_from(Runtime))
def test_whatever_happens_each_hook_is_released_once_and_a_terminated_task_holds_nothing(
    choices: list[int], runtime: Runtime
) -> None:
    """Half of the time the shim does what is wished for, else anything arrives."""
    task, gone = submit(UUID(int=1), runtime, 0.0), []
    for choice in choices:
        event = EVENTS[choice // 2 % len(EVENTS)]
        wished = wish(task)
        if choice % 2 and wished:
            effect = wished[0]
            event = START[HOOKS.index(effect.hook)] if isinstance(effect, Perform) else Undone(effect.hook)  # type: ignore[attr-defined]
        try:
            new = SHIM_TASK.step(task, event, 1.0).record
        except Refused:
            continue
        gone += [hook for hook in task.begun if hook not in new.begun]
        assert task.state is not S.TERMINATED or new.state is S.TERMINATED
        assert task.reason in (None, new.reason)
        assert runtime is Runtime.DOCKER or new.state is not S.PULLING
        task = new
        assert (not task.begun) == (task.state is S.TERMINATED)
        assert task.begun == HOOKS[: len(task.begun)]
    assert gone == list(reversed(HOOKS[: len(task.begun) + len(gone)][len(task.begun) :]))
    if task.state in LIVE:
        ended = released(walk(task, TerminateAsked())[0])
        assert (ended.state, ended.begun, ended.gpu_ids, ended.ports) == (S.TERMINATED, (), (), ())
