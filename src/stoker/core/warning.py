"""A warning before a job is ended: which signal its program hears, and how long before."""

from dataclasses import dataclass
from enum import StrEnum

from stoker.core.errors import UserError

UNHEARD = frozenset({"KILL", "STOP"})
"""No program can hear these."""

SIGNALS = frozenset(
    [
        "HUP",
        "INT",
        "QUIT",
        "ILL",
        "TRAP",
        "ABRT",
        "BUS",
        "FPE",
        "USR1",
        "SEGV",
        "USR2",
        "PIPE",
        "ALRM",
        "TERM",
        "STKFLT",
        "CHLD",
        "CONT",
        "TSTP",
        "TTIN",
        "TTOU",
        "URG",
        "XCPU",
        "XFSZ",
        "VTALRM",
        "PROF",
        "WINCH",
        "IO",
        "PWR",
        "SYS",
    ]
)
"""Those that Linux has, without SIG."""


class Deadline(StrEnum):
    """Why a job will be ended at a moment that is known before."""

    MAX_DURATION = "max_duration"
    PREEMPTION = "preemption"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class WarnSignal:
    """`USR1@120s`. More time than is left means at once."""

    signal: str
    """Without SIG."""
    ahead_s: float

    def __post_init__(self) -> None:
        if self.signal not in SIGNALS:
            raise UserError(f"A program cannot be warned by {self.signal}.", hint="USR1, USR2, TERM and INT are usual.")
