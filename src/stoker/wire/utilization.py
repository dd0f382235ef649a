"""`utilization_policy`: a job that does not use what it was given is ended."""

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field, Strict, model_validator

from stoker.core.utilization import Utilization
from stoker.wire.duration import Span
from stoker.wire.model import Model
from stoker.wire.word import refused

SHORTEST_S: Final = 10.0
"""Of a window: the runner looks every few seconds."""

Percent = Annotated[float, Strict(), Field(gt=0, le=100)]


class UtilizationPolicy(Model):
    """End it when it uses too little for a whole window, with the reason TERMINATED_DUE_TO_UTILIZATION_POLICY."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"min_gpu_utilization": 10, "time_window": "30m"}]})

    min_gpu_utilization: Percent | None = Field(default=None, description="Percent, of each GPU that it has.")
    min_cpu_utilization: Percent | None = Field(
        default=None, description="Percent, of the CPUs that it asked for (one, if it asked for none)."
    )
    time_window: Span = Field(description="How long it has to be below, without a break; at least 10s.")

    @model_validator(mode="after")
    def _says_something(self) -> "UtilizationPolicy":
        if self.min_gpu_utilization is None and self.min_cpu_utilization is None:
            raise refused("it says no minimum", "Give min_gpu_utilization, min_cpu_utilization or both, in percent.")
        if self.time_window < SHORTEST_S:
            raise refused(f"time_window is at least {SHORTEST_S:g} s", "30m is usual.")
        return self


def check_gpu(policy: UtilizationPolicy | None, gpu: Any) -> None:
    """A minimum that could never be reached would end every run."""
    if policy is not None and policy.min_gpu_utilization is not None and gpu in (None, 0, "0"):
        raise refused(
            "utilization_policy.min_gpu_utilization is given, and resources.gpu is not",
            "Ask for GPUs (resources: {gpu: 1}), or give min_cpu_utilization.",
        )


def to_utilization(policy: UtilizationPolicy | None) -> Utilization | None:
    if policy is None:
        return None
    return Utilization(policy.time_window, policy.min_gpu_utilization, policy.min_cpu_utilization)
