"""`${{ env.X }}` and `${{ run.args }}`: filled in once, quoted for the shell, and refused with their line."""

from pathlib import Path
from typing import Any

import pytest

from stoker.client.configuration import read
from stoker.core.errors import UserError
from tests.cli.conftest import Real, Stoker
from tests.cli.fake import Fake

HEAD = "type: task\ncommands: [x]\n"


def given(text: str, *words: str, **environ: str) -> dict[str, Any]:
    return read(text.encode(), "f.yaml", environ, words).given


def test_it_is_filled_in_everywhere_it_may_stand() -> None:
    text = """\
type: task
name: train-${{ env.X }}
working_dir: /data/${{env.X}}
image: team/app:${{ env.X }}
registry_auth:
  username: me
  password: ${{ env.X }}
setup:
  - pip install ${{ env.X }}
commands:
  - |
    first ${{ env.X }}
    then ${{   env.X   }}${{ env.X }}
env:
  A: ${{ env.X }}
  B: "[${{ run.args }}]"
"""
    assert given(text, "a b", X="v") == {
        "type": "task",
        "name": "train-v",
        "working_dir": "/data/v",
        "image": "team/app:v",
        "registry_auth": {"username": "me", "password": "v"},
        "setup": ["pip install v"],
        "commands": ["first v\nthen vv\n"],
        "env": {"A": "v", "B": "[a b]"},
    }
    assert given(HEAD + "env:\n  - A=${{ env.X }}\n", X="v")["env"] == ["A=v"]


def test_words_are_quoted_for_the_shell_in_commands() -> None:
    text = "type: task\ncommands:\n  - python train.py ${{ run.args }}\n"
    assert given(text, "--lr", "3e-4", "a b", "$(rm x)")["commands"] == ["python train.py --lr 3e-4 'a b' '$(rm x)'"]
    assert given(text)["commands"] == ["python train.py "]


def test_what_was_filled_in_is_never_looked_at_again() -> None:
    text = "type: task\ncommands:\n  - echo ${{ env.X }} ${{ run.args }}\n"
    filled = given(text, "${{ env.X }}", X="${{ run.args }} ${{ env.GONE }} $${{", GONE="no")
    assert filled["commands"] == ["echo ${{ run.args }} ${{ env.GONE }} $${{ '${{ env.X }}'"]


def test_two_dollars_write_it_as_it_is() -> None:
    text = "type: task\ncommands:\n  - echo $${{ env.X }} $$${{ nothing $$ $${ x\n"
    assert given(text)["commands"] == ["echo ${{ env.X }} $${{ nothing $$ $${ x"]


def test_other_keys_and_other_braces_are_left_alone() -> None:
    text = "type: task\nshell: ${{ env.X }}\ncommands:\n  - echo ${X} {{ env.X }} ${env.X} $X\n"
    told = given(text)
    assert (told["shell"], told["commands"]) == ("${{ env.X }}", ["echo ${X} {{ env.X }} ${env.X} $X"])


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("setup:\n  - a\n  - ${{ env.GONE }}\n", "line 5: setup.1: GONE is not set where you call", "export GONE=…"),
        ("setup:\n  - ${{ env.X }\n", "line 4: setup.0: ${{ is not closed by }}", "$${{"),
        ("setup:\n  - ${{ env.X\n", "line 4: setup.0: ${{ is not closed by }}", "$${{"),
        ("env:\n  A: ${{ secrets.X }}\n", "line 4: env.A: there is no expression 'secrets.X'", "${{ env.NAME }}"),
        ("env:\n  A: ${{ run.arg }}\n", "line 4: env.A: there is no expression 'run.arg'", "${{ run.args }}"),
        ("name: ${{ }}\n", "line 3: name: there is no expression ''", "${{ env.NAME }}"),
        ("name: ${{ env. }}\n", "line 3: name: there is no expression 'env.'", "${{ env.NAME }}"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_with_its_line_and_a_hint(text: str, says: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        given(HEAD + text, X="v")
    assert refused.value.sentence == f"f.yaml: {says}."
    assert hint in refused.value.hint


def test_words_that_nothing_takes_are_refused(stoker: Stoker, fake: Fake) -> None:
    told = stoker("apply", "-y", "-d", "-f", "examples/hello.yaml", "--", "--lr", "3e-4")
    assert told.returncode == 1
    assert b"nothing in it takes the words behind --" in told.stderr
    assert b"${{ run.args }}" in told.stderr
    assert fake.asked == []


def test_a_secret_that_is_filled_in_is_not_said_when_it_is_refused(stoker: Stoker, fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(HEAD + "env:\n  1A: ${{ env.SECRET }}\n")
    fake.answers = [(422, {}, {"error": {"code": "configuration", "message": "no."}})]
    told = stoker("apply", "-y", "-d", "-f", str(file), SECRET="hunter2")
    assert b"line 4: env.1A" in told.stderr
    assert b"hunter2" not in told.stderr


def test_run_leaves_what_was_typed_alone(stoker: Stoker, fake: Fake) -> None:
    assert stoker("run", "-d", "echo '${{ env.HOME }}'").returncode == 0
    assert fake.asked[-1][2]["configuration"]["commands"] == ["echo '${{ env.HOME }}'"]


@pytest.mark.xdist_group("cli")
def test_words_reach_the_program_as_they_were_typed(real: Real) -> None:
    task = b"type: task\ncommands:\n  - printf '%s|' ${{ run.args }} '${{ env.MINE }}'\n"
    told = real("apply", "-y", "-f", "-", "--", "a b", "--x", "it's", "$HOME", "*", stdin=task, env={"MINE": "v"})
    assert told.stdout == b"a b|--x|it's|$HOME|*|v|", told.stderr
