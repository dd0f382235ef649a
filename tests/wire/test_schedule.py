"""`schedule` and `hold` in a file, and what a changed file may change of a run."""

from typing import Any

import pytest

from stoker.core.schedule import Overlap, Schedule
from stoker.wire.configuration import TaskConfiguration, load, parse, restored, stored, to_policy
from stoker.wire.model import Invalid
from stoker.wire.revision import HARMLESS, FieldChange, compared
from stoker.wire.yaml import BadYaml

TASK = "type: task\ncommands: [x]\n"


def of(text: str) -> Schedule | None:
    return to_policy(load(TASK + text)).schedule


def test_a_line_a_list_and_a_map_say_the_same() -> None:
    once = Schedule(("0 3 * * *",))
    assert of('schedule: "0 3 * * *"') == of("schedule: [0 3 * * *]") == of("schedule:\n  cron: 0  3 * * *") == once
    assert of("schedule:\n  cron: [0 3 * * *, 5 4 * * 1]\n  timezone: Europe/Berlin\n  overlap: queue") == Schedule(
        ("0 3 * * *", "5 4 * * 1"), "Europe/Berlin", Overlap.QUEUE
    )
    assert of("schedule:") is None


@pytest.mark.parametrize(
    ("text", "line", "key", "says", "hint"),
    [
        ("schedule: 61 * * * *", 3, "schedule.cron", "Bad minute", "minute, hour, day of month"),
        ("schedule:\n  cron:\n    - 0 3 * * *\n    - 0 0 30 2 *", 6, "schedule.cron.1", "Bad day", "30 2 * * *"),
        ("schedule:\n  cron: 0 3 * * *\n  timezone: Europe/Berln", 5, "schedule.timezone", "no", "Europe/Berlin?"),
        ("schedule:\n  cron: 0 3 * * *\n  timezone: 5", 5, "schedule.timezone", "not a time zone", ""),
        ("schedule:\n  cron: 0 3 * * *\n  overlap: wait", 5, "schedule.overlap", "expected 'skip' or 'queue'", ""),
        ("schedule:\n  cron: 0 3 * * *\n  zone: UTC", 5, "schedule.zone", "no such key", "timezone"),
        ("schedule: 5", 3, "schedule", "expected a cron line", "0 3 * * *"),
        ('schedule:\n  cron: "@daily"', 4, "schedule.cron", "five fields", "30 2 * * *"),
        ("hold: yes", 3, "hold", "expected true or false", ""),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_a_hint(text: str, line: int, key: str, says: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        load(TASK + text)
    (problem,) = refused.value.problems
    assert (problem.line, problem.key) == (line, key)
    assert says in problem.message
    assert hint in problem.hint


@pytest.mark.parametrize("text", ["schedule: * * * * *", "schedule:\n  cron:\n    - */5 * * * *"])
def test_a_line_that_yaml_takes_for_an_alias_is_told_to_be_quoted(text: str) -> None:
    with pytest.raises(BadYaml) as refused:
        load(TASK + text)
    assert "needs quotes" in refused.value.hint


def test_what_is_stored_is_read_back_as_the_same() -> None:
    told = load(TASK + "hold: true\nschedule:\n  cron: 0 3 * * *\n  timezone: Europe/Berlin\n")
    assert restored(stored(told)) == told
    assert to_policy(told).hold


def a_task(**fields: Any) -> TaskConfiguration:
    return parse({"type": "task", "commands": ["x"]} | fields)


def test_only_what_the_server_alone_reads_may_change() -> None:
    changes, refused = compared(
        a_task(max_duration="1h", env={"A": "s3cret"}),
        a_task(priority=80, commands=["y"], hold=True, env={"A": "other"}),
    )
    assert refused == ("commands", "env")
    assert changes == (
        FieldChange(key="priority", old=50, new=80),
        FieldChange(key="max_duration", old="1h", new="off"),
        FieldChange(key="hold", old=False, new=True),
    )
    assert compared(a_task(), a_task()) == ((), ())


def test_the_list_of_what_may_change_knows_the_keys_there_are() -> None:
    """`retry` is in the list before it is a key."""
    assert set(HARMLESS) - set(TaskConfiguration.model_fields) <= {"retry"}
    assert {"commands", "env", "resources", "setup", "tty", "shell", "working_dir"}.isdisjoint(HARMLESS)


def test_a_schedule_is_compared_key_by_key_and_neither_comes_nor_goes() -> None:
    old, new = a_task(schedule="0 3 * * *"), a_task(schedule={"cron": "0 4 * * *", "overlap": "queue"})
    assert compared(old, new).note == "schedule.cron 0 3 * * * -> 0 4 * * *, schedule.overlap skip -> queue"
    assert compared(old, a_task()).refused == compared(a_task(), old).refused == ("schedule",)
