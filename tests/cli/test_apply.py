"""`stoker apply` and `stoker run`: what is sent, what is asked before, and what is refused with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.client import configuration
from stoker.wire import configuration as wire
from tests.cli.conftest import ROOT, Stoker, call
from tests.cli.fake import Fake, run
from tests.cli.terminal import terminal

HELLO = b"type: task\nname: hello\ncommands:\n  - echo hello\n"


def sent(fake: Fake) -> list[dict[str, Any]]:
    return [body["configuration"] for method, path, body in fake.asked if method == "POST" and path.endswith("/runs")]


def done(fake: Fake, name: str = "hello") -> None:
    fake.add(run(name))


@pytest.mark.parametrize(
    "text", [HELLO, json.dumps({"type": "task", "name": "hello", "commands": ["echo hello"]}).encode()]
)
def test_yaml_or_json_on_stdin(stoker: Stoker, fake: Fake, text: bytes) -> None:
    done(fake)
    told = stoker("apply", "-y", "-f", "-", stdin=text)
    assert told.returncode == 0, told.stderr
    assert sent(fake) == [{"type": "task", "name": "hello", "commands": ["echo hello"]}]
    assert b"It would start at once" in told.stderr
    assert len(fake.keys) == 1


def test_without_a_terminal_somebody_has_to_have_said_yes(stoker: Stoker, fake: Fake) -> None:
    told = stoker("apply", "-f", "examples/hello.yaml")
    assert told.returncode == 2
    assert b"-y" in told.stderr
    assert sent(fake) == []


@pytest.mark.parametrize(("key", "runs"), [(b"\n", 1), (b"y\n", 1), (b"n\n", 0)])
def test_the_plan_is_shown_and_confirmed(connected: dict[str, str], fake: Fake, key: bytes, runs: int) -> None:
    done(fake)
    with terminal(connected, "apply", "-f", "examples/hello.yaml") as person:
        person.wait_for(b"It would start at once")
        person.wait_for(b"Run it?")
        person.type(key)
        assert person.ends() == (0 if runs else 1)
    assert len(sent(fake)) == runs


def test_detached_prints_the_name_or_the_run(stoker: Stoker, fake: Fake) -> None:
    told = stoker("apply", "-y", "-d", "-f", "examples/hello.yaml")
    assert (told.returncode, told.stdout) == (0, b"hello\n")
    told = stoker("apply", "-y", "-d", "--json", "-f", "examples/hello.yaml", "-n", "other")
    assert json.loads(told.stdout)["name"] == "other"


def test_attached_with_json_waits_and_prints_the_run(stoker: Stoker, fake: Fake) -> None:
    fake.add(run("hello", status="FAILED", exit_code=9))
    told = stoker("apply", "-y", "--json", "-f", "examples/hello.yaml")
    assert told.returncode == 9
    assert json.loads(told.stdout)["status"] == "FAILED"


def test_dry_run_does_nothing(stoker: Stoker, fake: Fake) -> None:
    told = stoker("apply", "--dry-run", "--json", "-f", "examples/hello.yaml")
    assert json.loads(told.stdout)["action"] == "create"
    assert sent(fake) == []


def test_bare_names_take_the_callers_values(stoker: Stoker, fake: Fake, tmp_path: Path) -> None:
    done(fake)
    listed = HELLO + b"env:\n  - TOKEN_OF_MINE\n  - OTHER=1.10\n"
    mapped = HELLO + b"env:\n  TOKEN_OF_MINE:\n  OTHER: 1.10\n"
    for text in (listed, mapped):
        assert stoker("apply", "-y", "-f", "-", stdin=text, TOKEN_OF_MINE="s3cret").returncode == 0
    assert [each["env"] for each in sent(fake)] == [
        ["TOKEN_OF_MINE=s3cret", "OTHER=1.10"],
        {"TOKEN_OF_MINE": "s3cret", "OTHER": "1.10"},
    ]
    told = stoker("apply", "-y", "-f", "-", stdin=listed)
    assert told.returncode == 1
    assert b"TOKEN_OF_MINE" in told.stderr
    assert len(sent(fake)) == 2


def test_what_the_server_refuses_is_said_with_its_line(stoker: Stoker, fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_bytes(b"type: task\ncomands:\n  - true\nresources:\n  memry: 8GB\n")
    fake.answers = [(422, {}, {"error": {"code": "configuration", "message": "comands: there is no such key here."}})]
    told = stoker("apply", "-y", "-f", str(file))
    assert told.returncode == 1
    said = told.stderr.decode()
    assert f"{file}: line 2: comands: there is no such key here. Did you mean commands?" in said
    assert f"{file}: line 5: resources.memry: there is no such key here. Did you mean memory?" in said


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1"])
def test_without_a_server_what_is_wrong_with_the_file_is_said_first(environ: dict[str, str], url: str) -> None:
    """On a train: the file can be mended there, the server cannot."""
    environ |= {"STOKER_URL": url} if url else {}
    told = call(environ, "apply", "-y", "-f", "-", stdin=b"type: task\ncomands: [x]\npriority: high\n")
    assert told.returncode == 1
    assert b"stdin: line 2: comands: there is no such key here. Did you mean commands?" in told.stderr
    assert b"stdin: line 3: priority: expected a whole number" in told.stderr
    good = call(environ, "apply", "-y", "-f", "-", stdin=HELLO)
    assert good.returncode == 1
    assert (b"cannot be reached" if url else b"No server is configured") in good.stderr


def test_a_type_that_is_planned_is_no_mistake_in_spelling(environ: dict[str, str]) -> None:
    told = call(environ, "apply", "-y", "-f", "-", stdin=b"type: service\nport: 80\n")
    assert told.stderr.startswith(
        b"Error: stdin: line 1: type: service is planned and not there yet. The types that work"
    )


def test_what_only_the_server_refuses_is_said_as_it_says_it(stoker: Stoker, fake: Fake) -> None:
    """A server of another version may know better."""
    fake.answers = [(422, {}, {"error": {"code": "configuration", "message": "Not here.", "hint": "Elsewhere."}})]
    told = stoker("apply", "-y", "-f", "examples/hello.yaml")
    assert told.returncode == 1
    assert b"Not here." in told.stderr
    assert b"Elsewhere." in told.stderr


@pytest.mark.parametrize("text", [b"- a\n", b"type: [\n", b"", b"\x00", b"a: *b\n", b"x\n"])
def test_what_is_no_configuration_is_refused_without_asking(stoker: Stoker, fake: Fake, text: bytes) -> None:
    told = stoker("apply", "-y", "-f", "-", stdin=text)
    assert told.returncode == 1
    assert told.stderr.startswith(b"Error: stdin: "), told.stderr
    assert b"Traceback" not in told.stderr
    assert fake.asked == []


def test_a_file_that_is_not_there(stoker: Stoker) -> None:
    told = stoker("apply", "-y", "-f", "gone.yaml")
    assert told.returncode == 1
    assert b"gone.yaml cannot be read: No such file" in told.stderr


def test_a_file_without_its_flag_is_told_how(stoker: Stoker, fake: Fake) -> None:
    for args, says in ((["hello.yaml"], b"stoker apply -f hello.yaml"), ([], b"stoker apply -f FILE")):
        told = stoker("apply", *args)
        assert (told.returncode, fake.asked) == (2, [])
        assert says in told.stderr


def test_what_is_wrong_with_a_flag_is_said_without_the_request_around_it(stoker: Stoker, fake: Fake) -> None:
    wrong = "configuration.name: expected a name, got 'X'."
    fake.answers = [(422, {}, {"error": {"code": "configuration", "message": wrong, "hint": "Did you mean x?"}})]
    told = stoker("run", "--name", "X", "--", "true")
    assert told.stderr == b"Error: name: expected a name, got 'X'.\n  Did you mean x?\n"


def test_an_unfinished_run_of_the_same_name_is_not_replaced(stoker: Stoker, fake: Fake) -> None:
    plan = {"action": "refuse", "sentence": "Run hello is not finished.", "name": "hello", "expected": None}
    fake.answers = [(200, {}, plan)]
    told = stoker("apply", "-y", "-f", "examples/hello.yaml")
    assert told.returncode == 1
    assert b"`stoker stop hello`" in told.stderr
    assert sent(fake) == []


def test_run_takes_a_program_or_a_line(stoker: Stoker, fake: Fake) -> None:
    for args, commands in [
        (["--", "echo", "a b", "$HOME"], ["echo 'a b' '$HOME'"]),
        (["echo $HOME | wc -c"], ["echo $HOME | wc -c"]),
        (["ls", "-l", "--all"], ["ls -l --all"]),
    ]:
        fake.asked.clear()
        assert stoker("run", "-d", *args).returncode == 0
        assert [each["commands"] for each in sent(fake)] == [commands]


def test_flags_of_run_are_the_keys_of_a_file(stoker: Stoker, fake: Fake) -> None:
    flags = ["--cpu", "2", "--memory", "1GB", "--gpu", "1", "-e", "A=b", "-e", "MINE", "--max-duration", "1h", "--tty"]
    more = ["--priority", "70", "--shell", "bash", "--fail-fast", "-C", ".", "-n", "x", "--image", "busybox"]
    assert stoker("run", "-d", *flags, *more, "--", "true", MINE="m").returncode == 0
    (told,) = sent(fake)
    parsed = wire.parse(told)
    assert parsed.env == {"A": "b", "MINE": "m"}
    assert (parsed.name, parsed.priority, parsed.shell, parsed.tty) == ("x", 70, "bash", True)
    assert parsed.image == "busybox"
    assert (parsed.working_dir, parsed.on_no_capacity, parsed.max_duration) == (str(ROOT), "fail", 3600)
    assert told["resources"] == {"cpu": "2", "memory": "1GB", "gpu": "1"}


def test_an_option_that_run_does_not_know_is_no_command(stoker: Stoker, fake: Fake) -> None:
    """It was taken for the command, with all that stood behind it."""
    told = stoker("run", "--gpus", "1", "--", "python", "train.py")
    assert (told.returncode, sent(fake)) == (2, [])
    assert b"No such option" in told.stderr and b"--gpus" in told.stderr and b"Did you mean" in told.stderr
    assert stoker("run", "-d", "--", "--gpus", "1").returncode == 0
    assert [each["commands"] for each in sent(fake)] == [["--gpus 1"]]


def test_run_refuses_a_variable_that_the_caller_does_not_have(stoker: Stoker, fake: Fake) -> None:
    told = stoker("run", "-e", "NOT_SET_ANYWHERE", "--", "true")
    assert told.returncode == 1
    assert b"NOT_SET_ANYWHERE" in told.stderr
    assert sent(fake) == []


def test_the_client_reads_a_file_as_the_models_do() -> None:
    assert configuration.AS_WRITTEN == wire.AS_WRITTEN
    for file in (ROOT / "examples").glob("*.yaml"):
        text = file.read_bytes()
        assert wire.parse_any(configuration.read(text, "", {}).given) == wire.load_any(text), file
