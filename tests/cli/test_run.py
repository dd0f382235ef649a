"""`ps`, `get`, `why`, `stop`, `wait`, `delete`: what they print, what programs read, what the shell is told."""

import json
import threading
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from stoker.cli import exits
from tests.cli.conftest import Stoker
from tests.cli.fake import Fake, job, run

RUNNING = {"status": "RUNNING", "termination_reason": None, "exit_code": None, "finished_at": None}
FAILED = {"status": "FAILED", "termination_reason": "JOB_FAILED"}


def test_ps_lists_what_has_not_finished(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("old"), run("train", **RUNNING))
    lines = stoker("ps").stdout.decode().splitlines()
    assert lines[0].split() == ["NAME", "STATUS", "SUBMITTED", "TOOK", "EXIT", "USER", "MESSAGE"]
    assert [line.split()[0] for line in lines[1:]] == ["train"]
    assert b"\x1b" not in stoker("ps").stdout
    assert [each["name"] for each in json.loads(stoker("ps", "-a", "--json").stdout)] == ["old", "train"]


def test_runs_that_share_a_name_are_told_apart_by_their_ids(stoker: Stoker, fake: Fake) -> None:
    ids = [f"0199d4c2-7f3{digit}-7000-8000-000000000000" for digit in "ab"]
    fake.runs = {id: run("train", id=id) for id in ids}
    lines = stoker("ps", "-a").stdout.decode().splitlines()
    assert lines[0].split()[:3] == ["NAME", "ID", "STATUS"]
    assert [line.split()[1] for line in lines[1:]] == ["0199d4c2-7f3a", "0199d4c2-7f3b"]
    fake.runs["x"] = run("other", id="0199d4c2-7f3b-7001-8000-000000000000")
    longer = stoker("ps", "-a").stdout.decode().splitlines()
    assert [line.split()[1] for line in longer[2:]] == ["0199d4c2-7f3b-7000", "0199d4c2-7f3b-7001"]


def test_ps_says_when_there_is_nothing(stoker: Stoker) -> None:
    told = stoker("ps")
    assert (told.returncode, told.stdout) == (0, b"")
    assert b"stoker ps -a" in told.stderr
    assert json.loads(stoker("ps", "--json").stdout) == []


def test_programs_get_all_pages_and_people_the_last_ones(stoker: Stoker, fake: Fake) -> None:
    fake.add(*(run(f"run-{number}") for number in range(230)))
    assert len(json.loads(stoker("ps", "-a", "--json").stdout)) == 230
    told = stoker("ps", "-a")
    assert len(told.stdout.splitlines()) == 51
    assert b"-n" in told.stderr
    assert len(stoker("ps", "-a", "-n", "120").stdout.splitlines()) == 121
    assert len(stoker("ps", "-a", "-n", "7").stdout.splitlines()) == 8


def test_names_and_messages_cannot_command_the_terminal(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train", status_message="a\x1b[2Jb\nc", **RUNNING))
    told = stoker("ps").stdout
    assert b"\x1b" not in told
    assert len(told.splitlines()) == 2


def test_get_shows_a_run_and_its_jobs(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train", jobs=[job(exit_code=None, exit_signal=9, status="FAILED")], **FAILED | {"exit_code": 137}))
    told = stoker("get", "train").stdout.decode()
    assert "signal 9" in told
    assert "JOB_FAILED" in told
    assert json.loads(stoker("get", "train", "--json").stdout) == fake.runs["train"]


def test_an_unknown_run_is_1_with_the_nearest_names(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train-1"), run("other"))
    for args in [
        ("get", "trian-1"),
        ("stop", "trian-1"),
        ("logs", "trian-1"),
        ("why", "trian-1"),
        ("events", "trian-1"),
    ]:
        told = stoker(*args)
        assert (told.returncode, told.stdout) == (1, b""), args
        assert b"Did you mean train-1?" in told.stderr, args


def test_why_says_it_in_a_sentence(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train", **RUNNING))
    assert stoker("why", "train").stdout.decode().splitlines() == ["It waits for a machine.", "  i-1: is full"]
    assert json.loads(stoker("why", "train", "--json").stdout)["reasons"]


def test_why_does_not_say_it_twice(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train", **RUNNING))
    fake.sentence = "train waits: needs 2 CPUs, i-1 has 1 of 2 CPUs free."
    assert stoker("why", "train").stdout.decode().splitlines() == [fake.sentence]


def test_what_waits_for_a_container_engine_is_told_what_to_do(stoker: Stoker, fake: Fake) -> None:
    """One who started the server without root has Docker, and reads that there is none."""
    fake.add(run("train", **RUNNING))
    fake.sentence, fake.limit = "train waits: it runs in a container, and i-1 has no Docker engine.", "docker"
    first, hint = stoker("why", "train").stdout.decode().splitlines()
    assert first == fake.sentence
    assert "Start Docker or Podman there; only agents that are root use it." in hint


def test_a_job_shows_where_the_ports_of_its_container_are(stoker: Stoker, fake: Fake) -> None:
    ports = [{"inside": 8000, "on_host": 49153}, {"inside": 9000, "on_host": 49154}]
    fake.add(run("train", jobs=[job(status="RUNNING", termination_reason=None, ports=ports)]))
    shown = stoker("get", "train").stdout.decode()
    assert "8000 is 127.0.0.1:49153 of its host; 9000 is 127.0.0.1:49154 of its host" in shown


def test_who_stops_what_waited_is_not_told_that_it_had_ended_already(stoker: Stoker, fake: Fake) -> None:
    """It ends in the very moment in which it is stopped."""
    later = "2999-05-01T12:00:03Z"
    fake.add(run("waited", status="TERMINATED", finished_at=later))
    fake.add(run("old", status="DONE"))
    lines = stoker("stop", "waited", "old").stdout.decode().splitlines()
    assert lines == ["waited  TERMINATED", "old  TERMINATED  had ended already"]


def test_offers_are_a_table_with_what_stands_against_them(stoker: Stoker, fake: Fake) -> None:
    has = {"cpu": 8, "memory_mb": 32768, "disk_mb": 1, "gpus": [{"name": "A100"}] * 2, "named": {}}
    good = {"backend": "dummy", "name": "a100x2", "location": "eu-1", "resources": has, "spot": True, "price": 2.5,
            "available": 3, "penalty": 1.0, "fleets": ["pool"], "fits": True, "sentence": ""}  # fmt: skip
    bad = good | {"name": "small", "fits": False, "sentence": "needs 8 CPUs, has 2", "available": None, "penalty": 0}
    there = [{"instance": "i", "name": "local-1", "fits": False, "sentence": "cordoned"}]
    fake.offers = {"items": [good, bad], "more": 1, "fitting": 1, "instances": there, "more_instances": 0}
    told = stoker("offers", "-f", "-", stdin=b"type: task\ncommands: [true]\n").stdout.decode()
    lines = told.splitlines()
    assert lines[1].split("  ")[0] == "a100x2"
    assert "8 CPUs, 32 GB of memory, 2×A100" in lines[1]
    assert lines[2].endswith("needs 8 CPUs, has 2")
    assert "Existing instances (0 of 1 would do now):" in told
    assert "  local-1: cordoned" in lines
    assert fake.asked[-1][2]["configuration"]["type"] == "task"
    assert json.loads(stoker("offers", "--json").stdout) == fake.offers
    assert fake.asked[-1][:2] == ("GET", "/api/projects/main/offers?limit=50")


@pytest.mark.parametrize("ref", ["", "..", "a/b", "--", " "])
def test_what_can_be_no_run_is_not_asked_for(stoker: Stoker, fake: Fake, ref: str) -> None:
    for args in (["get"], ["stop"], ["events"], ["wait"]):
        told = stoker(*args, "--", ref)
        assert (told.returncode, fake.asked) == (2, [])
        assert f"{ref!r} is no name of a run, and no id.".encode() in told.stderr


def event(seq: int, **said: Any) -> dict[str, Any]:
    told = {"seq": seq, "at": "2026-05-01T12:00:00.5Z", "run": "train", "kind": "job", "event": "Placed", "by": ""}
    return told | {"source": "SUBMITTED", "target": "PROVISIONING", "message": ""} | said


def test_events_are_a_table_also_as_they_come(stoker: Stoker, fake: Fake) -> None:
    """Somebody follows them and reads, with the header, which is the status and who asked for it."""
    fake.add(run("train"))
    fake.events = [event(1), event(2, kind="run", source="RUNNING", target="TERMINATING", by="ann", message="asked to")]
    for args in (["events"], ["events", "-f"]):
        lines = stoker(*args, "train").stdout.decode().splitlines()
        assert lines[0].replace("TIME (", "TIME(").split()[1:] == ["WHAT", "EVENT", "STATUS", "BY", "MESSAGE"], lines[0]
        for name, text in (("WHAT", "run"), ("STATUS", "RUNNING → TERM"), ("BY", "ann"), ("MESSAGE", "asked to")):
            assert lines[2][lines[0].index(name) :].startswith(text), args


def test_people_are_told_their_own_time_and_programs_that_of_the_world(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("train"))
    fake.events = [event(1)]
    here = {"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"}
    assert "submitted  2026-05-01 14:00:00 CEST (" in stoker("get", "train", **here).stdout.decode()
    assert json.loads(stoker("get", "train", "--json", **here).stdout)["submitted_at"] == "2026-05-01T12:00:00Z"
    header, line = stoker("events", "train", **here).stdout.decode().splitlines()
    assert header.startswith(("TIME (CET)", "TIME (CEST)"))
    assert line.startswith("2026-05-01 14:00:00.500  job")
    assert json.loads(stoker("events", "train", "--json", **here).stdout)["at"] == "2026-05-01T12:00:00.5Z"


def test_events_of_a_project_are_narrowed_as_people_say_it(stoker: Stoker, fake: Fake) -> None:
    fake.events = [event(1, name="train/3-0"), event(2, kind="instance", name="local-9c41ab", run=None)]
    lines = stoker("events", "--fleet", "pool", "--by", "server", "--until", "10m").stdout.decode().splitlines()
    assert "job train/3-0 " in lines[1]
    assert "instance local-9c41ab " in lines[2]
    asked = parse_qs(urlsplit(fake.asked[-1][1]).query)
    assert (asked["fleet"], asked["by"]) == (["pool"], ["server"])
    day_s = (datetime.fromisoformat(asked["until"][0]) - datetime.fromisoformat(asked["since"][0])).total_seconds()
    assert 23 * 3600 < day_s < 24 * 3600
    followed = [json.loads(line) for line in stoker("events", "-f", "--json").stdout.splitlines()]
    assert followed == fake.events
    assert "since" not in fake.asked[-1][1]


def test_events_that_are_not_kept_any_more_are_not_passed_over(stoker: Stoker, fake: Fake) -> None:
    fake.events = [event(1)]
    fake.forgotten = True
    told = stoker("events", "-f", "--json")
    assert told.returncode == 1
    assert "The journal is kept from number 9 on. Begin anew." in " ".join(told.stderr.decode().split())


def test_events_are_of_one_thing_and_what_is_followed_has_no_end(stoker: Stoker, fake: Fake) -> None:
    for args in (["train", "--fleet", "pool"], ["--run", "a", "--instance", "b"], ["-f", "--until", "1h"]):
        assert (stoker("events", *args).returncode, fake.asked) == (2, []), args
    assert b"neither a length of time nor a moment" in stoker("events", "--since", "yesterday").stderr


def test_stop_takes_several_names(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("a", **RUNNING), run("b", **RUNNING), run("c", **RUNNING))
    told = stoker("stop", "a", "b", "--abort", "--json")
    assert [each["name"] for each in json.loads(told.stdout)] == ["a", "b"]
    assert fake.runs["a"]["termination_reason"] == "ABORTED_BY_USER"
    assert fake.runs["c"]["status"] == "RUNNING"


def test_stop_all_needs_a_yes(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("a", **RUNNING))
    assert stoker("stop", "--all").returncode == 2
    assert fake.runs["a"]["status"] == "RUNNING"
    assert stoker("stop", "--all", "-y").returncode == 0
    assert fake.runs["a"]["termination_reason"] == "STOPPED_BY_USER"


def test_delete_goes_on_behind_one_that_is_not_there(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("a"), run("b"))
    told = stoker("delete", "a", "x", "b", "-y", "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout) == {"deleted": ["a", "b"]}
    assert b"no run x" in told.stderr


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({}, 0),
        ({**FAILED, "exit_code": 7}, 7),
        ({**FAILED, "exit_code": 137}, 137),
        ({**FAILED, "exit_code": None}, exits.RUN_FAILED),
        ({**FAILED, "exit_code": 0}, exits.RUN_FAILED),
        ({"status": "TERMINATED", "termination_reason": "STOPPED_BY_USER", "exit_code": 143}, exits.RUN_STOPPED),
        (RUNNING, exits.RUN_UNFINISHED),
    ],
)
def test_wait_tells_the_shell_how_it_ended(stoker: Stoker, fake: Fake, said: dict[str, Any], code: int) -> None:
    fake.add(run("train", **said))
    told = stoker("wait", "train", "--timeout", "0.2s")
    assert told.returncode == code
    assert told.stdout.startswith(b"train ")


def test_wait_returns_as_soon_as_it_has_ended(stoker: Stoker, fake: Fake) -> None:
    fake.add(running := run("train", **RUNNING))

    def end() -> None:
        running.update(FAILED, exit_code=3)
        fake.add(running)

    threading.Timer(0.3, end).start()
    assert stoker("wait", "train").returncode == 3


def test_wait_for_what_is_not_there_is_102(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("a"), run("b", **FAILED, exit_code=5))
    told = stoker("wait", "a", "x", "b", "--json")
    assert told.returncode == exits.RUN_NOT_FOUND
    assert [each["name"] for each in json.loads(told.stdout)] == ["a", "b"]
