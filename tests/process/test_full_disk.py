"""Disks of the server that are full: what was accepted is not lost, people see what is wrong, and room mends it."""

import os
from collections.abc import Callable

import pytest

from stoker.client.client import Json
from stoker.core.errors import StokerError, Unavailable
from stoker.store.installation import account
from tests.machine import fill
from tests.process.conftest import Disk
from tests.process.crowd import Yard, numbers
from tests.process.stand import Stand, until

pytestmark = pytest.mark.xdist_group("survival")


def test_a_full_disk_of_logs_is_shown_and_every_byte_arrives_when_there_is_room(
    yard: Yard, disk: Disk, own_stand: Callable[..., Stand]
) -> None:
    """The job itself does not notice: its host keeps the log until somebody can take it."""
    logs = disk(yard.file("logs"), 2)
    stand = own_stand(STOKER_LOGS=str(logs))
    stand.start()
    ballast = logs / "ballast"
    fill(ballast)
    stand.submit("wordy", "seq 100000", "exit 3")
    until(lambda: "no space left" in stand.get("wordy")["status_message"], "it is shown")
    assert stand.get("wordy")["status"] == "TERMINATING"
    assert "no space left" in stand("ps").stdout.replace("\n", " ")
    assert "no space left" in " ".join(stand("why", "wordy").stdout.split())
    assert "no space left" in " ".join(stand("events", "wordy").stdout.split())
    stand.kill_server()
    stand.start()
    assert stand.get("wordy")["status"] == "TERMINATING"
    ballast.unlink()
    run = stand.finished("wordy")
    assert (run["status"], run["exit_code"]) == ("FAILED", 3)
    assert "space" not in run["status_message"]
    assert stand.log("wordy") == numbers(1, 100_000)
    until(lambda: not stand.tasks(), "the host has forgotten it")


def test_a_full_disk_of_the_database_refuses_work_and_loses_none_that_was_accepted(
    yard: Yard, disk: Disk, own_stand: Callable[..., Stand]
) -> None:
    """A job ends meanwhile, and PostgreSQL dies on top of it."""
    stand = own_stand()
    account(os.geteuid()).own(disk(stand.home / "postgres", 160))
    stand.start()
    stand.submit("going-on", yard.note("going-on"), "seq 100", yard.gate("going-on"), "exit 4")
    until(lambda: yard.began("going-on"), "it runs")
    job = stand.job("going-on")["id"]
    ballast = stand.home / "postgres" / "ballast"
    fill(ballast)
    accepted, refused = submit_until_refused(stand)
    assert (type(refused), refused.code) == (Unavailable, "disk_full")
    assert "no space left" in refused.sentence
    for command in (("ps",), ("events", "going-on")):
        assert "no space left" in stand(*command).stderr
    yard.open("going-on")
    until(stand.place(job).result.exists, "it has ended")
    for pid in stand.postgres():
        os.kill(pid, 9)
    ballast.unlink()
    run = stand.finished("going-on")
    assert (run["status"], run["exit_code"]) == ("FAILED", 4)
    assert stand.log("going-on") == numbers(1, 100)
    for one in accepted:
        assert stand.finished(one["name"])["status"] == "DONE"
    assert stand.run("afterwards", "true")["status"] == "DONE"
    assert len(yard.began("going-on")) == 1


def submit_until_refused(stand: Stand) -> tuple[list[Json], StokerError]:
    """Each is large, so that the tables have to grow soon."""
    accepted: list[Json] = []
    for number in range(200):
        weight = os.urandom(40_000).hex()
        configuration = {"type": "task", "name": f"heavy-{number}", "commands": ["true"], "env": {"WEIGHT": weight}}
        try:
            body = {"configuration": configuration, "expected": None}
            path = stand.client.at("runs")
            accepted.append(stand.client.ask("POST", path, body=body, patience_s=0.0).json())
        except StokerError as error:
            return accepted, error
    raise AssertionError("a full disk took everything")
