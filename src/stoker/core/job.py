"""The life of a job: one submission, from the queue until everything it held is given back.

The table at the end is the life. TERMINATING walks through `Cleanup` in its written order, and only its
last rows assign a finished status. A job gives blocks back only by an event that finds it SUBMITTED or
TERMINATING, so that a commit knows before it steps which instances it has to lock.
"""

from stoker.core.gang import OnNoCapacity
from stoker.core.ids import InstanceId
from stoker.core.job_end import (
    clean_on,
    cut_grace,
    deadline,
    detached,
    end,
    ended_unnoticed,
    ends_aborted,
    ends_done,
    ends_failed,
    exit_of,
    finish,
    given_up,
    grace_over,
    machine_gone,
    max_duration_at,
    nobody_to_stop,
    not_aborted,
    not_exited,
    note_exit,
    note_gone,
    note_limit,
    on_that_machine,
    passed,
    silence_at,
    start_timeout_at,
    stopped,
    stopped_by_limit,
    stopped_itself,
    stopping,
    stopping_one_that_ended,
    stopping_too_long,
    that_step,
    unregistered_or_not,
    unregistering_there,
    unregistering_too_long,
)
from stoker.core.job_facts import (
    ACTIVE,
    FINISHED,
    PLACED,
    AgentFailed,
    CleanedUp,
    Draining,
    EndAsked,
    Exited,
    Freed,
    Gathered,
    GraceCut,
    Heard,
    InstanceGone,
    Interrupted,
    Job,
    LimitExceeded,
    NoCapacity,
    Parted,
    Placed,
    Released,
    Reserved,
    RunnerAccepted,
    S,
    Silent,
    StartTask,
    SubmitJob,
    Taken,
    TaskAccepted,
    VolumeFailed,
)
from stoker.core.job_leave import (
    after_warning,
    await_drain,
    await_leave,
    drain_is_news,
    end_leaving,
    end_warned,
    run,
    time_to_leave,
    warned_first,
)
from stoker.core.machine import Event, Machine, Row, Send, Then, TimeUp, ask, pairs, rows, stay
from stoker.core.reason import JobReason
from stoker.core.retry import Fate
from stoker.core.volume_facts import Attached

__all__ = ["JOB", "Job", "S", "deadline"]


def reserve(job: Job, event: Reserved, now: float) -> Then:
    taken = Send("instance", event.instance_id, Taken(job.id, event.blocks, reserved=True))
    return ask(sends=(taken, *attached(job, event.instance_id)), instance_id=event.instance_id, blocks=event.blocks)


def provision(job: Job, event: Placed, now: float) -> Then:
    alone = job.policy.nodes == 1
    effects = (StartTask(alone),) if event.shim else (SubmitJob(),) if alone else ()
    taken = (Send("instance", event.instance_id, Taken(job.id, event.blocks)), *attached(job, event.instance_id))
    return ask(
        *effects, sends=() if job.instance_id else taken, note=f"on {event.where}" if event.where else "",
        instance_id=event.instance_id, blocks=event.blocks, owned=event.owned, shim=event.shim,
    )  # fmt: skip


def attached(job: Job, instance_id: InstanceId) -> tuple[Send, ...]:
    """In the commit that gives it the machine: before anybody there hears of it, it has them."""
    return tuple(Send("volume", volume, Attached(job.id, instance_id)) for volume in job.policy.volumes)


def wait_again(job: Job, event: Interrupted | InstanceGone, now: float) -> Then:
    freed = Send("instance", event.instance_id, Freed(job.id))
    return ask(sends=(freed, *detached(job, began=False)), instance_id=None, blocks=(), note=event.message)


def give_back(job: Job, event: Parted, now: float) -> Then:
    assert job.instance_id is not None
    freed = Send("instance", job.instance_id, Freed(job.id))
    return ask(
        sends=(freed, *detached(job, began=False)),
        instance_id=None,
        blocks=(),
        note="waits again with the other nodes of its replica",
    )


def get_ready(job: Job, event: TimeUp, now: float) -> Then:
    return ask(ready_at=None)


def submit(job: Job, event: TaskAccepted, now: float) -> Then:
    return ask(SubmitJob(), unreachable_since=None)


def gather(job: Job, event: TaskAccepted, now: float) -> Then:
    return ask(unreachable_since=None)


def begin(job: Job, event: Gathered, now: float) -> Then:
    # What it waited for the others is not taken from its runner's time.
    return ask(SubmitJob(), entered_at=now)


def mark_silent(job: Job, event: Silent, now: float) -> Then:
    return ask(unreachable_since=now, note="unreachable")


def mark_heard(job: Job, event: Heard, now: float) -> Then:
    return ask(unreachable_since=None, note="reachable again")


def end_done(job: Job, event: Exited, now: float) -> Then:
    return end(job, JobReason.DONE_BY_RUNNER, now, **exit_of(job, event, now))


def end_exited(job: Job, event: Exited, now: float) -> Then:
    if event.setup:
        reason = JobReason.SETUP_FAILED
    else:
        reason = JobReason.OUT_OF_MEMORY if event.oom else JobReason.CONTAINER_EXITED_WITH_ERROR
    return end(job, reason, now, **exit_of(job, event, now))


def end_failed(job: Job, event: AgentFailed, now: float) -> Then:
    return end(job, event.reason, now, message=event.message)


def end_limit(job: Job, event: LimitExceeded, now: float) -> Then:
    exited = {} if event.ended is None else exit_of(job, event.ended, now)
    return end(job, event.reason, now, message=event.message, **exited)


def end_interrupted(job: Job, event: Interrupted | InstanceGone, now: float) -> Then:
    gone = isinstance(event, InstanceGone)
    return end(job, JobReason.INTERRUPTED_BY_NO_CAPACITY, now, message=event.message, gone=gone)


def end_no_capacity(job: Job, event: NoCapacity | Interrupted | InstanceGone, now: float) -> Then:
    return end(job, JobReason.FAILED_TO_START_DUE_TO_NO_CAPACITY, now, message=event.message)


def end_volume(job: Job, event: VolumeFailed, now: float) -> Then:
    # Whatever `retry` says: what was lost with it does not come back, and it is meant by its id.
    return end(job, JobReason.VOLUME_ERROR, now, fate=Fate.FAILED, message=event.message)


def end_waiting_instance(job: Job, event: TimeUp, now: float) -> Then:
    return end(job, JobReason.WAITING_INSTANCE_LIMIT_EXCEEDED, now)


def end_waiting_runner(job: Job, event: TimeUp, now: float) -> Then:
    return end(job, JobReason.WAITING_RUNNER_LIMIT_EXCEEDED, now)


def end_max_duration(job: Job, event: TimeUp, now: float) -> Then:
    return end(job, JobReason.MAX_DURATION_EXCEEDED, now)


def end_unreachable(job: Job, event: TimeUp, now: float) -> Then:
    return end(job, JobReason.INSTANCE_UNREACHABLE, now)


def end_asked(job: Job, event: EndAsked, now: float) -> Then:
    return end(job, event.reason, now, fate=event.fate, budget=event.budget, message=event.message)


def unplaced(job: Job, event: Event, now: float) -> bool:
    return job.instance_id is None and not job.policy.hold


def unplaced_or_there(job: Job, event: Placed, now: float) -> bool:
    return unplaced(job, event, now) or job.instance_id == event.instance_id


def reserved(job: Job, event: Parted, now: float) -> bool:
    return job.instance_id is not None


def there(job: Job, event: Interrupted | InstanceGone, now: float) -> bool:
    return job.instance_id == event.instance_id


def there_and_not_queued(job: Job, event: Interrupted | InstanceGone, now: float) -> bool:
    return job.instance_id == event.instance_id and job.policy.on_no_capacity is OnNoCapacity.FAIL


def alone(job: Job, event: TaskAccepted, now: float) -> bool:
    return job.policy.nodes == 1


def without_shim(job: Job, event: Event, now: float) -> bool:
    return not job.shim


def exit_zero(job: Job, event: Exited, now: float) -> bool:
    return event.exit_code == 0 and event.signal is None


def heard_before(job: Job, event: Event, now: float) -> bool:
    return job.unreachable_since is None


def silent_before(job: Job, event: Event, now: float) -> bool:
    return job.unreachable_since is not None


def not_started_in_time(job: Job, event: TimeUp, now: float) -> bool:
    return passed(start_timeout_at(job), now)


def ready(job: Job, event: TimeUp, now: float) -> bool:
    return passed(job.ready_at, now)


def waited_too_long(job: Job, event: TimeUp, now: float) -> bool:
    return passed(deadline(job), now)


def ran_too_long(job: Job, event: TimeUp, now: float) -> bool:
    return passed(max_duration_at(job), now)


def silent_too_long(job: Job, event: TimeUp, now: float) -> bool:
    return passed(silence_at(job), now)


EVENTS = (Reserved, Placed, Parted, NoCapacity, VolumeFailed, TaskAccepted, Gathered, RunnerAccepted, Exited,
          AgentFailed, LimitExceeded, Silent, Heard, Draining, Interrupted, InstanceGone, EndAsked, GraceCut,
          CleanedUp, Released, TimeUp)  # fmt: skip

JOB: Machine[Job] = Machine("job", (S.SUBMITTED,), (
    #   from            event           to              then                  when
    Row(S.SUBMITTED,    Reserved,       S.SUBMITTED,    reserve,              unplaced),
    Row(S.SUBMITTED,    Placed,         S.PROVISIONING, provision,            unplaced_or_there),
    Row(S.SUBMITTED,    NoCapacity,     S.TERMINATING,  end_no_capacity,      unplaced),
    Row(S.SUBMITTED,    VolumeFailed,   S.TERMINATING,  end_volume,           unplaced),
    Row(S.SUBMITTED,    Interrupted,    S.TERMINATING,  end_no_capacity,      there_and_not_queued),
    Row(S.SUBMITTED,    Interrupted,    S.SUBMITTED,    wait_again,           there),
    Row(S.SUBMITTED,    InstanceGone,   S.TERMINATING,  end_no_capacity,      there_and_not_queued),
    Row(S.SUBMITTED,    InstanceGone,   S.SUBMITTED,    wait_again,           there),
    Row(S.SUBMITTED,    Parted,         S.SUBMITTED,    give_back,            reserved),
    Row(S.SUBMITTED,    TimeUp,         S.TERMINATING,  end_waiting_instance, not_started_in_time),
    Row(S.SUBMITTED,    TimeUp,         S.SUBMITTED,    get_ready,            ready),
    Row(S.PROVISIONING, TaskAccepted,   S.PULLING,      submit,               alone),
    Row(S.PROVISIONING, TaskAccepted,   S.PULLING,      gather),
    Row(S.PROVISIONING, Gathered,       S.PROVISIONING, begin,                without_shim),
    Row(S.PULLING,      Gathered,       S.PULLING,      begin),
    Row(S.PROVISIONING, RunnerAccepted, S.RUNNING,      run,                  without_shim),
    Row(S.PROVISIONING, TimeUp,         S.TERMINATING,  end_waiting_instance, waited_too_long),
    Row(S.PULLING,      RunnerAccepted, S.RUNNING,      run),
    Row(S.PULLING,      TimeUp,         S.TERMINATING,  end_waiting_runner,   waited_too_long),
    Row(S.RUNNING,      TimeUp,         S.TERMINATING,  end_max_duration,     ran_too_long),
    Row(S.RUNNING,      TimeUp,         S.TERMINATING,  end_unreachable,      silent_too_long),
    Row(S.RUNNING,      TimeUp,         S.TERMINATING,  end_leaving,          time_to_leave),
    Row(S.RUNNING,      Interrupted,    S.RUNNING,      await_leave,          warned_first),
    *rows(PLACED,       Exited,         S.TERMINATING,  end_done,             exit_zero),
    Row(S.RUNNING,      Exited,         S.TERMINATING,  end_warned,           after_warning),
    *rows(PLACED,       Exited,         S.TERMINATING,  end_exited),
    *rows(PLACED,       LimitExceeded,  S.TERMINATING,  end_limit),
    *stay(PLACED,       Draining,                       await_drain,          drain_is_news),
    *rows(PLACED,       AgentFailed,    S.TERMINATING,  end_failed),
    *rows(PLACED,       Interrupted,    S.TERMINATING,  end_interrupted,      there),
    *rows(PLACED,       InstanceGone,   S.TERMINATING,  end_interrupted,      there),
    *rows(ACTIVE,       EndAsked,       S.TERMINATING,  end_asked),
    *stay((*PLACED, S.TERMINATING), Silent,             mark_silent,          heard_before),
    *stay((*PLACED, S.TERMINATING), Heard,              mark_heard,           silent_before),
    Row(S.TERMINATING,  CleanedUp,      S.TERMINATING,  clean_on,             that_step),
    Row(S.TERMINATING,  Exited,         S.TERMINATING,  stopped,              stopping),
    Row(S.TERMINATING,  Exited,         S.TERMINATING,  note_exit,            not_exited),
    Row(S.TERMINATING,  LimitExceeded,  S.TERMINATING,  stopped_by_limit,     stopping_one_that_ended),
    Row(S.TERMINATING,  LimitExceeded,  S.TERMINATING,  note_limit,           ended_unnoticed),
    Row(S.TERMINATING,  AgentFailed,    S.TERMINATING,  nobody_to_stop,       stopping),
    Row(S.TERMINATING,  TimeUp,         S.TERMINATING,  unregistered_or_not,  unregistering_too_long),
    Row(S.TERMINATING,  TimeUp,         S.TERMINATING,  grace_over,           stopping_too_long),
    Row(S.TERMINATING,  TimeUp,         S.TERMINATING,  given_up,             stopped_itself),
    Row(S.TERMINATING,  InstanceGone,   S.TERMINATING,  machine_gone,         on_that_machine),
    Row(S.TERMINATING,  InstanceGone,   S.TERMINATING,  note_gone,            unregistering_there),
    Row(S.TERMINATING,  GraceCut,       S.TERMINATING,  cut_grace,            not_aborted),
    Row(S.TERMINATING,  Released,       S.DONE,         finish,               ends_done),
    Row(S.TERMINATING,  Released,       S.FAILED,       finish,               ends_failed),
    Row(S.TERMINATING,  Released,       S.ABORTED,      finish,               ends_aborted),
    Row(S.TERMINATING,  Released,       S.TERMINATED,   finish),
), stale=(
    pairs(FINISHED, *EVENTS)
    | pairs((S.SUBMITTED,), Reserved, Placed, NoCapacity, VolumeFailed, Draining, Interrupted, InstanceGone, TimeUp)
    | pairs((S.SUBMITTED,), Silent, Heard)
    | pairs(PLACED, Reserved, Placed, NoCapacity, VolumeFailed, Draining, Interrupted, InstanceGone, Silent, Heard)
    | pairs(PLACED, TimeUp)
    | pairs(ACTIVE, Gathered, Parted)
    | pairs((S.PULLING, S.RUNNING), TaskAccepted)
    | pairs((S.RUNNING,), RunnerAccepted)
    | pairs((S.TERMINATING,), *(event for event in EVENTS if event is not Released))
))  # fmt: skip
