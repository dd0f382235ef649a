"""When the nodes of a replica begin: all of them have their machines first, then in the order that was asked for."""

from collections.abc import Sequence

from stoker.core.ids import JobId
from stoker.core.job_facts import Job, S
from stoker.core.policy import StartupOrder
from stoker.core.retry import Fate


def may_begin(replica: Sequence[Job]) -> frozenset[JobId]:
    """Of all nodes of a replica, those that may be given their job now; whoever has begun is not among them."""
    if not all(map(_there, replica)):
        return frozenset()
    match replica[0].policy.startup_order:
        case StartupOrder.ANY:
            pass
        case StartupOrder.MASTER_FIRST:
            held = any(job.node == 0 and not _began(job) for job in replica)
            replica = [job for job in replica if not held or job.node == 0]
        case StartupOrder.WORKERS_FIRST:
            held = any(job.node != 0 and not _began(job) for job in replica)
            replica = [job for job in replica if not held or job.node != 0]
    return frozenset(job.id for job in replica if not _began(job))


def _there(job: Job) -> bool:
    """Its agent is up and waits for the job. A pod has no shim: it is asked as soon as it is placed."""
    return job.state is S.PULLING or (job.state is S.PROVISIONING and not job.shim) or _began(job)


def _began(job: Job) -> bool:
    """One that ended well may have done so before anybody saw it run."""
    return job.state is S.RUNNING or job.fate is Fate.DONE
