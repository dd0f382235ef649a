"""Effects on their way through the outbox: a name and JSON, and back."""

import json
from dataclasses import fields

from stoker.core import instance_facts, job_facts, managed_task, run_facts, volume_facts
from stoker.core.errors import Broken
from stoker.core.machine import Effect

_STORED: dict[str, type[Effect]] = {
    effect.__name__: effect
    for effect in (
        job_facts.StartTask,
        job_facts.SubmitJob,
        job_facts.Unregister,
        job_facts.Warn,
        job_facts.AskStop,
        job_facts.RemoveTask,
        job_facts.DetachVolumes,
        job_facts.Release,
        run_facts.Sweep,
        run_facts.TellOwner,
        instance_facts.Launch,
        instance_facts.Destroy,
        instance_facts.TellJobs,
        managed_task.LaunchRun,
        managed_task.StopRun,
        volume_facts.MakeVolume,
        volume_facts.AwaitVolume,
        volume_facts.RemoveVolume,
    )
}

_FIELDS = {name: tuple(field.name for field in fields(effect)) for name, effect in _STORED.items()}


def encode(effect: Effect) -> tuple[str, str]:
    """Fields of effects are numbers and strings: what a performer needs besides is in the record."""
    name = type(effect).__name__
    if name not in _FIELDS:
        raise Broken(f"effect {name} is not registered")
    values = {field: getattr(effect, field) for field in _FIELDS[name]}
    return name, json.dumps(values) if values else "{}"


def decode(name: str, payload: str) -> Effect:
    return _STORED[name](**json.loads(payload)) if payload != "{}" else _STORED[name]()
