"""How busy a job has to keep what it was given."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Utilization:
    """Below one of these for a whole window it is ended. None: nobody looks at it."""

    window_s: float
    min_gpu_percent: float | None = None
    """Of each GPU: one that idles is one too many."""
    min_cpu_percent: float | None = None
    """Of all CPUs that it asked for together."""
