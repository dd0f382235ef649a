"""Runs of many jobs in a line: `37/100 done, 10 running, 2 failed`."""

from typing import Final

from stoker.client.client import Json

SHOWN: Final = ("running", "starting", "waiting", "retrying", "failed", "stopped")


def counted(run: Json) -> str:
    """Empty for a run of one job: its status says it all."""
    counts = run.get("counts") or {}
    if counts.get("total", 0) < 2:
        return ""
    others = (f"{counts[kind]} {kind}" for kind in SHOWN if counts.get(kind))
    return ", ".join((f"{counts['done']}/{counts['total']} done", *others))


def place(job: Json, several_nodes: bool) -> str:
    """Which of its run's jobs it is."""
    return f"{job['replica']}-{job['node']}" if several_nodes else str(job["replica"])
