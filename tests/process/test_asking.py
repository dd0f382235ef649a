"""Asking twice, asking at the wrong time, asking as somebody else: clear answers, and nothing happens by mistake."""

import json
import socket
import threading
from collections.abc import Callable
from http.client import HTTPConnection
from uuid import uuid4

import pytest

from stoker.client import run as client_run
from stoker.client.client import Client, Json
from stoker.core.errors import Conflict, NotFound, StokerError, UserError
from tests.machine import as_root
from tests.process.crowd import Yard
from tests.process.stand import Stand, until

pytestmark = pytest.mark.xdist_group("stand")


def unix_ask(path: str, token: str, method: str, target: str, body: Json | None = None) -> tuple[int, Json]:
    """One request to an agent on its socket."""
    connection = HTTPConnection("agent", timeout=10.0)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(10.0)
    connection.sock.connect(path)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        sent = None if body is None else json.dumps(body)
        connection.request(method, target, body=sent, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def refusal(ask: Callable[[], object]) -> StokerError:
    with pytest.raises(StokerError) as refused:
        ask()
    error = refused.value
    assert error.sentence.endswith("."), error.sentence
    assert "Traceback" not in error.sentence + error.hint
    return error


def test_the_same_submission_twice_is_one_run(stand: Stand, yard: Yard) -> None:
    """Also when both come at once, and when the server was killed in between: whoever got no answer asks again."""
    key, answers = str(uuid4()), list[Json]()

    def submit() -> None:
        configuration = {"type": "task", "commands": [yard.note("keyed"), "exit 2"]}
        answers.append(client_run.submit(stand.client.again(), configuration, expected=None, key=key))

    together = [threading.Thread(target=submit) for _ in range(8)]
    for one in together:
        one.start()
    for one in together:
        one.join(60.0)
    assert len({run["id"] for run in answers}) == 1
    stand.kill_server()
    stand.start()
    submit()
    assert len(answers) == 9
    assert len({run["id"] for run in answers}) == 1
    name = answers[0]["name"]
    assert stand.finished(name)["exit_code"] == 2
    submit()
    assert (answers[-1]["id"], answers[-1]["status"]) == (answers[0]["id"], "FAILED")
    assert len(yard.began("keyed")) == 1


def test_a_key_is_not_taken_for_another_submission(stand: Stand) -> None:
    key = str(uuid4())
    first = stand.submit("first-use", "true", key=key)
    error = refusal(lambda: stand.submit("second-use", "true", key=key))
    assert (type(error), error.code) == (Conflict, "key_reused")
    assert stand.submit("first-use", "true", key=key)["id"] == first["id"]
    assert isinstance(refusal(lambda: stand.get("second-use")), NotFound)


def test_a_name_is_taken_while_its_run_is_unfinished(stand: Stand, yard: Yard) -> None:
    first = stand.submit("same", yard.note("same"), yard.gate("same"))
    error = refusal(lambda: stand.submit("same", "true"))
    assert (type(error), error.code) == (Conflict, "name_taken")
    assert "same" in error.sentence
    assert "stop" in error.hint
    yard.open("same")
    assert stand.finished("same")["id"] == first["id"]
    assert stand.run("same", "true")["id"] != first["id"]
    assert len(yard.began("same")) == 1


def test_a_run_can_be_stopped_in_each_state_and_twice(stand: Stand, yard: Yard) -> None:
    stopped = ("TERMINATED", "STOPPED_BY_USER")
    stand.submit("waiting", "true", resources={"cpu": 100_000})
    assert stand.stop("waiting")["status"] in ("TERMINATING", "TERMINATED")
    for number in range(6):
        # Somewhere between its placement and its start.
        stand.submit(f"beginning-{number}", "sleep 1000")
        stand.stop(f"beginning-{number}")
    stand.submit("running", yard.note("running"), "sleep 1000")
    until(lambda: yard.began("running"), "it runs")
    assert stand.stop("running")["status"] == "TERMINATING"
    trap = f"trap '{yard.note('held')}; {yard.gate('held')}; exit 0' TERM"
    stand.submit("held", trap, yard.note("held"), "sleep 1000 & wait", stop_duration="1h")
    until(lambda: yard.began("held"), "it runs")
    versions = set()
    for _ in range(3):
        run = stand.stop("held")
        assert (run["status"], run["termination_reason"]) == ("TERMINATING", "STOPPED_BY_USER")
        versions.add(run["version"])
    until(lambda: len(yard.began("held")) == 2, "it was asked once")
    assert len(versions) == 1
    yard.open("held")
    names = ["waiting", "running", "held", *(f"beginning-{number}" for number in range(6))]
    for name in names:
        run = stand.finished(name)
        assert (run["status"], run["termination_reason"]) == stopped, run
        assert stand.stop(name) == stand.get(name) == run
        assert stand.processes_of([run["jobs"][0]["id"]]) == []
    assert len(yard.began("held")) == 2
    assert stand.run("over", "exit 3")["status"] == "FAILED"
    assert (stand.stop("over")["status"], stand.get("over")["termination_reason"]) == ("FAILED", "JOB_FAILED")
    assert isinstance(refusal(lambda: stand.stop("never-was")), NotFound)


def test_a_run_is_not_deleted_while_it_is_unfinished(stand: Stand, yard: Yard) -> None:
    stand.submit("kept", yard.note("kept"), "echo up", yard.gate("kept"))
    until(lambda: stand.get("kept")["status"] == "RUNNING", "it runs")
    error = refusal(lambda: client_run.delete(stand.client, "kept"))
    assert (type(error), error.code) == (Conflict, "not_finished")
    assert "RUNNING" in error.sentence
    yard.open("kept")
    assert stand.finished("kept")["status"] == "DONE"
    assert stand.log("kept") == b"up\n"
    client_run.delete(stand.client, "kept")
    assert isinstance(refusal(lambda: stand.get("kept")), NotFound)
    assert isinstance(refusal(lambda: client_run.delete(stand.client, "kept")), NotFound)


def test_the_token_of_one_job_does_not_open_the_runner_of_another(stand: Stand, yard: Yard) -> None:
    """Nor does it open the shim or the server."""
    for name in ("mine", "theirs"):
        stand.submit(name, yard.note(name), "echo up", yard.gate(name))
        until(lambda name=name: yard.began(name), f"{name} runs")  # type: ignore[misc]
    mine, theirs = stand.job("mine")["id"], stand.job("theirs")["id"]
    token, door = stand.agent_token(mine), stand.agent_socket(theirs)
    order = {"fence": 2**60, "grace_s": 0.0}
    for method, path, body in (
        ("GET", "/healthz", None),
        ("GET", "/pull?offset=0", None),
        ("GET", "/own", None),
        ("POST", "/stop", order),
        ("POST", "/run", None),
        ("GET", "/live?offset=0", None),
    ):
        for stranger in (token, "", "x" * 64):
            status, said = unix_ask(door, stranger, method, path, body)
            assert (status, said["error"]["code"]) == (401, "unauthorized")
            assert stand.agent_token(theirs) not in str(said)
    assert unix_ask(stand.agent_socket(mine), token, "GET", "/healthz")[0] == 200
    assert unix_ask(stand.shim_socket, token, "GET", "/tasks")[0] == 401
    with pytest.raises(UserError) as refused:
        client_run.get(Client(stand.client.url, token, "main"), "mine")
    assert token not in str(refused.value)
    for name in ("mine", "theirs"):
        assert stand.get(name)["status"] == "RUNNING"
        yard.open(name)
        assert stand.finished(name)["status"] == "DONE"


@as_root
def test_a_job_cannot_read_the_files_of_another_project_nor_ours(stand: Stand, yard: Yard) -> None:
    """Nor can it reach their agents, or see what they were told: it runs as another user."""
    client = stand.client
    client.post("/api/projects", {"name": "rival"}, key=str(uuid4()))
    stand.submit("secretive", "umask 022; echo secret > plain; id -u", yard.note("secretive"), yard.gate("secretive"))
    until(lambda: yard.began("secretive"), "it runs")
    victim = stand.place(stand.job("secretive")["id"])
    places = [
        victim.work / "plain",
        victim.order,
        victim.assignment,
        victim.directory / "task.jsonl",
        next(victim.log.iterdir()),
        stand.shim_home / "token",
        stand.home / "config.yml",
    ]
    assert all(path.exists() for path in places)
    spy = [f"for path in {' '.join(map(str, places))}; do cat $path && echo open $path; done"]
    ours = [stand.home, stand.home / "logs", stand.home / "postgres", stand.shim_home / "tasks"]
    closed = [victim.work, victim.log, *ours]
    spy.append(f"for path in {' '.join(map(str, closed))}; do ls $path && echo open $path; done")
    spy.append(f"kill -0 {yard.began('secretive')[0]} && echo open process")
    spy.append(f"cat /proc/{yard.began('secretive')[0]}/environ && echo open environment")
    spy.append(f"echo x > {victim.work}/written && echo open work")
    sockets = [stand.agent_socket(victim.directory.name), stand.shim_socket, str(stand.shim_home / "fork.sock")]
    reach = "import socket,sys; s = socket.socket(socket.AF_UNIX, {kind}); s.connect('{path}'); print('open {path}')"
    for path in sockets:
        kind = "socket.SOCK_SEQPACKET" if path.endswith("fork.sock") else "socket.SOCK_STREAM"
        spy.append(f'python3 -c "{reach.format(kind=kind, path=path)}"')
    spy.append("id -u")
    rival = Client(client.url, client.token, "rival")
    configuration = {"type": "task", "name": "spy", "commands": ["set +e", *spy]}
    client_run.submit(rival, configuration, expected=None, key=str(uuid4()))
    assert client_run.wait(rival, "spy", timeout_s=60.0)["status"] == "DONE"
    seen = stand.log("spy", client=rival).decode()
    assert "open" not in seen
    assert "secret" not in seen
    yard.open("secretive")
    stand.finished("secretive")
    users = {int(seen.split()[-1]), int(stand.log("secretive").split()[0])}
    assert len(users) == 2
    assert 0 not in users
