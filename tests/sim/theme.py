"""What a seed is about: each theme visits corners that a mixture of everything would visit too seldom."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ACTS = {
    "submit": 30, "submit_managed": 6, "stop": 8, "abort": 6, "scale": 6, "break_run": 1, "cordon": 2, "drain": 2,
    "delete": 2, "preempt": 6, "preempt_early": 1, "retire": 1, "cut": 5, "freeze": 3, "kill": 4, "freeze_server": 3,
    "cancel_managed": 3, "limit": 2, "end_by_hand": 3, "blackout": 0, "outage": 1,
    "trigger": 3, "hold": 3, "revise": 4, "apply": 3, "sicken": 3, "delete_volume": 1,
}  # fmt: skip
KINDS = {"task": 40, "array": 20, "gang": 20, "service": 12, "cron": 8}


@dataclass(frozen=True, slots=True)
class Theme:
    name: str
    chaos_s: float = 60.0
    pause_s: tuple[float, float] = (0.2, 6.0)
    acts: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)
    whole: int = 64
    page: int = 256
    """Smaller than in life, so that small runs are swept page by page."""
    slots: tuple[int, int] = (2, 4)
    """Launching and alive managed jobs, at most."""
    most_tasks: int = 4
    graphs: int = 2
    """Of the swarm."""
    programs_s: tuple[float, ...] = (0.1, 1.0, 5.0, 30.0, 120.0, 700.0)
    """How long programs run, at most; the first end before anybody knows that they began."""
    meddling: float = 0.02
    """How often people cancel what has just changed, or its controller breaks."""
    owned_hosts: int = 2
    failing: int = 1
    """How much more often programs fail."""
    idle_duration_s: float = 120.0
    idle_at_once: float = 0.0
    """How often a job is found idle as it begins, which may be heard before it is known to run."""
    warnings_s: tuple[float | None, ...] = (None, 20.0)
    """How long before a known end programs ask to be warned."""
    notices_s: tuple[float, ...] = (0.0, 30.0, 120.0)
    """How long before a provider says that it takes a machine back."""


THEMES = (
    Theme("everything"),
    Theme(
        "managed jobs",
        chaos_s=150.0,
        pause_s=(0.2, 4.0),
        slots=(2, 3),
        most_tasks=5,
        graphs=1,
        programs_s=(0.1, 1.0, 5.0, 15.0, 40.0),
        owned_hosts=1,
        failing=2,
        meddling=0.06,
        # Little else happens, so that much of this does.
        acts={
            **dict.fromkeys(ACTS, 1),
            "submit": 3,
            "submit_managed": 30,
            "cancel_managed": 6,
            "stop": 3,
            "preempt": 4,
            "preempt_early": 4,
            "scale": 0,
            "blackout": 0,
        },
    ),
    Theme(
        "schedules",
        chaos_s=360.0,
        pause_s=(2.0, 30.0),
        kinds={"cron": 60},
        acts={"stop": 12, "abort": 12, "trigger": 20, "hold": 12, "revise": 12},
        meddling=0.06,
    ),
    Theme(
        "services",
        pause_s=(0.2, 3.0),
        kinds={"service": 150},
        acts={"submit": 60, "scale": 30, "submit_managed": 1},
        programs_s=(0.1, 1.0, 5.0, 20.0),
        meddling=0.06,
    ),
    Theme(
        "silence",
        chaos_s=1750.0,
        pause_s=(5.0, 160.0),
        acts={
            "blackout": 30,
            "cut": 10,
            "freeze": 1,
            "kill": 2,
            "preempt": 0,
            "delete": 0,
            "drain": 0,
            "retire": 0,
            "apply": 0,
        },
        idle_duration_s=3000.0,
    ),
    Theme("crowds", kinds={"array": 60, "gang": 30}, acts={"abort": 12, "stop": 12, "break_run": 4}, whole=2, page=3),
    Theme(
        "comings and goings",
        # Long programs, most of them warned: what a notice means is seen only where somebody runs.
        acts={"preempt": 24, "preempt_early": 10, "retire": 6, "drain": 6, "delete": 6},
        programs_s=(1.0, 5.0, 30.0, 120.0, 120.0),
        idle_at_once=0.03,
        owned_hosts=0,
        warnings_s=(20.0, 60.0),
        notices_s=(0.0, 30.0, 120.0, 120.0),
    ),
)


def theme_of(seed: int) -> Theme:
    return THEMES[seed % len(THEMES)]
