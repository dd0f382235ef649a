"""Profiles under a file and under flags: which one is taken, how it is merged, and what is refused with its line."""

from pathlib import Path
from typing import Any

import pytest

from stoker.client.configuration import read
from stoker.client.profile import chosen, merged, places
from stoker.core.errors import UserError
from stoker.wire.configuration import parse
from tests.cli.conftest import ROOT, Real, Stoker
from tests.cli.fake import Fake
from tests.cli.test_main import HEAVY, imported

GPU = """\
profiles:
  - name: gpu
    default: true
    priority: 70
    resources: {gpu: 1, memory: 8GB}
    env: {A: profile, B: profile}
  - name: slow
    max_duration: 2h
"""
TASK = "type: task\nname: x\ncommands: [x]\n"


def sent(fake: Fake) -> dict[str, Any]:
    body: dict[str, Any] = fake.asked[-1][2]["configuration"]
    return body


def profiles(directory: Path, text: str = GPU) -> Path:
    (directory / ".stoker").mkdir(parents=True, exist_ok=True)
    file = directory / ".stoker" / "profiles.yml"
    file.write_text(text)
    return file


def test_maps_are_merged_key_by_key_lists_are_replaced_and_the_file_wins() -> None:
    under = {"priority": 70, "resources": {"gpu": 1, "memory": "8GB"}, "setup": ["a", "b"], "tty": True, "shell": "zsh"}
    over = {"resources": {"memory": "4GB"}, "setup": ["c"], "tty": False, "shell": None}
    assert merged(under, over) == {
        "priority": 70,
        "resources": {"gpu": 1, "memory": "4GB"},
        "setup": ["c"],
        "tty": False,
        "shell": "zsh",
    }


@pytest.mark.parametrize("under", [{"A": "1", "B": "2"}, ["A=1", "B=2"]])
@pytest.mark.parametrize("over", [{"B": "3", "C": None}, ["B=3", "C"]])
def test_variables_are_merged_by_name_however_they_are_written(under: object, over: object) -> None:
    assert merged({"env": under}, {"env": over}) == {"env": {"A": "1", "B": "3", "C": None}}


def test_the_nearest_profile_of_a_name_is_taken_and_the_repository_ends_the_search(tmp_path: Path) -> None:
    home, root, deep = tmp_path / "home", tmp_path / "repository", tmp_path / "repository" / "a" / "b"
    deep.mkdir(parents=True)
    home.mkdir()
    (root / ".git").mkdir()
    outside = profiles(tmp_path, "profiles: [{name: outside}]")
    near = profiles(root / "a", "profiles: [{name: gpu, priority: 1}]")
    far = profiles(root)
    (home / "profiles.yml").write_text("profiles: [{name: gpu, priority: 3}, {name: mine, default: true}]")
    assert list(places(deep, home)) == [near, far, home / "profiles.yml"]
    assert outside not in places(deep, home)
    found = {name: chosen(name, deep, home) for name in ("gpu", "slow", "mine", None, "none")}
    assert {name: one.where if one else None for name, one in found.items()} == {
        "gpu": str(near),
        "slow": str(far),
        "mine": str(home / "profiles.yml"),
        None: str(far),
        "none": None,
    }


def test_a_profile_lies_under_the_file_and_under_flags(stoker: Stoker, fake: Fake, tmp_path: Path) -> None:
    profiles(tmp_path)
    (tmp_path / "task.yaml").write_text(TASK + "env: [B=file]\nresources: {memory: 4GB}\n")
    apply = ["apply", "-y", "-d", "-f", str(tmp_path / "task.yaml")]
    assert stoker(*apply).returncode == 0
    assert parse(sent(fake)) == parse(
        {"type": "task", "name": "x", "commands": ["x"], "priority": 70}
        | {"resources": {"gpu": 1, "memory": "4GB"}, "env": {"A": "profile", "B": "file"}}
    )
    assert stoker(*apply, "--profile", "slow").returncode == 0
    assert (sent(fake)["max_duration"], "priority" in sent(fake)) == ("2h", False)
    assert stoker(*apply, "--profile", "none").returncode == 0
    assert set(sent(fake)) == {"type", "name", "commands", "env", "resources"}
    home = tmp_path / "stoker"
    home.mkdir()
    (home / "profiles.yml").write_text(GPU)
    assert stoker("run", "-d", "--priority", "3", "-e", "B=flag", "--", "x").returncode == 0
    assert (sent(fake)["priority"], sent(fake)["env"]) == (3, {"A": "profile", "B": "flag"})


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("profiles:\n  - name: a\n    type: task\n", 3, "type does not belong into a profile"),
        ("profiles:\n  - name: a\n    commands: [x]\n", 3, "commands does not belong into a profile"),
        ("profiles:\n  - priority: 3\n", 2, "a profile is a map with a name"),
        ("profiles:\n  - name: a\n  - name: a\n", 3, "there is a profile a above it"),
        ("profiles:\n  - {name: a, default: true}\n  - {name: b, default: true}\n", 3, "a is the default already"),
        ("profiles:\n  - name: a\n    default: yes\n", 3, "default: expected true or false"),
        ("profiles:\n  - name: none\n", 2, "none means no profile"),
        ("profiles: []\nprofile: []\n", 2, "expected `profiles:` with a list, and nothing else"),
        ("- name: a\n", 1, "expected `profiles:` with a list, and nothing else"),
        ("profiles: [\n", 2, "this is not YAML"),
    ],
)
def test_what_is_wrong_with_a_profile_file_is_said_with_its_line(
    stoker: Stoker, fake: Fake, tmp_path: Path, text: str, line: int, says: str
) -> None:
    file = profiles(tmp_path, text)
    (tmp_path / "task.yaml").write_text(TASK)
    told = stoker("apply", "-y", "-d", "-f", str(tmp_path / "task.yaml"))
    assert told.returncode == 1
    assert f"Error: {file}: line {line}: {says}" in told.stderr.decode()
    assert fake.asked == []


def test_what_the_server_refuses_of_a_profile_is_said_with_the_profiles_line(
    stoker: Stoker, fake: Fake, tmp_path: Path
) -> None:
    refused: tuple[int, dict[str, str], dict[str, Any]] = (
        422,
        {},
        {"error": {"code": "configuration", "message": "priority: no."}},
    )
    file = profiles(
        tmp_path, "profiles:\n  - name: a\n    default: true\n    priority: high\n    resources: {memry: 1}\n"
    )
    (tmp_path / "task.yaml").write_text(TASK + "tty: maybe\n")
    fake.answers = [refused]
    said = stoker("apply", "-y", "-d", "-f", str(tmp_path / "task.yaml")).stderr.decode()
    assert f"{tmp_path}/task.yaml: line 4: tty: expected true or false, got 'maybe'." in said
    assert f"{file}: line 4: priority: expected a whole number, got 'high'." in said
    assert f"{file}: line 5: resources.memry: there is no such key here. Did you mean memory?" in said
    home = tmp_path / "stoker"
    home.mkdir()
    (home / "profiles.yml").write_text(file.read_text())
    fake.answers = [refused]
    said = stoker("run", "-d", "--", "x").stderr.decode()
    assert f"{home}/profiles.yml: line 4: priority: expected a whole number, got 'high'." in said


def test_what_is_wrong_with_a_flag_is_not_said_of_the_profile(stoker: Stoker, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "profiles.yml").write_text(GPU)
    fake.answers = [(422, {}, {"error": {"code": "configuration", "message": "configuration.name: no name."}})]
    assert stoker("run", "-d", "--name", "X", "--", "x").stderr == b"Error: name: no name.\n"


def test_a_profile_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UserError) as nothing:
        chosen("gpu", tmp_path, tmp_path)
    assert ".stoker/profiles.yml" in nothing.value.hint
    profiles(tmp_path)
    for name, hint in (("gpus", "Did you mean gpu?"), ("zzz", "Known are gpu, slow.")):
        with pytest.raises(UserError) as unknown:
            chosen(name, tmp_path, tmp_path)
        assert (unknown.value.sentence, unknown.value.hint) == (f"There is no profile {name}.", hint)


def test_a_variable_that_only_the_overridden_profile_needs_is_not_asked_for(tmp_path: Path) -> None:
    profiles(tmp_path, "profiles:\n  - name: a\n    default: true\n    env: {A: '${{ env.GONE }}'}\n")
    profile = chosen(None, tmp_path, tmp_path)
    assert read(TASK.encode() + b"env: {A: mine}\n", "f", {}, profile=profile).given["env"] == {"A": "mine"}
    with pytest.raises(UserError) as refused:
        read(TASK.encode(), "f", {}, profile=profile)
    assert refused.value.sentence.endswith("profiles.yml: line 4: env.A: GONE is not set where you call.")


def test_without_profiles_a_quick_command_stays_quick(connected: dict[str, str], fake: Fake) -> None:
    assert imported(connected, "run", "-d", "x") & {*HEAVY} == set()


@pytest.mark.xdist_group("cli")
def test_the_example_runs_over_both_of_its_profiles(real: Real) -> None:
    file = str(ROOT / "examples" / "profile" / "train.yaml")
    told = real("apply", "-y", "-f", file, env={"USER": "ada"})
    assert told.stdout == b"a small run of ada, called with:\n", told.stderr
    told = real(
        "apply", "-y", "-f", file, "--profile", "urgent", "--", "--lr", "3e-4", "a b; exit 1", env={"USER": "$X"}
    )
    assert told.stdout == b"a as large as it takes run of $X, called with: --lr 3e-4 a b; exit 1\n", told.stderr
