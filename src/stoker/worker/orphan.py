"""Processes that fled from their task and outlived it: found because a worker is the subreaper of what it starts.

Whoever left the process group of its task and lost its parent becomes our child. To which attempt it belongs is in the
environment that it was started with; one that says nothing is left alone as long as any task runs.
"""

import os
from collections.abc import Collection

from stoker.runner import proc
from stoker.runner.reaper import kill_each
from stoker.worker.keeper import children


def sweep(running: Collection[int], attempts: Collection[tuple[str, int]]) -> int:
    """Kills those that belong to no attempt that runs; how many there were. `running`: pids that are no orphans."""
    orphans = [pid for pid in children() if pid not in running and proc.alive(pid)]
    condemned = [pid for pid in orphans if not _wanted(pid, attempts)]
    kill_each(condemned)
    return len(condemned)


def _wanted(pid: int, attempts: Collection[tuple[str, int]]) -> bool:
    said = dict(line.partition(b"=")[::2] for line in proc.environment(pid).split(b"\0"))
    task, attempt = said.get(b"STOKER_TASK_ID"), said.get(b"STOKER_ATTEMPT", b"")
    if task is None:
        return bool(attempts)
    return attempt.isdigit() and (os.fsdecode(task), int(attempt)) in attempts
