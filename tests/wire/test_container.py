"""The keys of a task that runs in a container: understood, or refused; and never a password shown."""

import json
from typing import Any

import pytest

from stoker.core.resources import Request
from stoker.wire.configuration import load, parse, restored, stored, to_json, to_policy
from stoker.wire.container import HIDDEN, Images, to_container, without_secrets
from stoker.wire.group import first_request
from stoker.wire.model import Invalid, body_of
from stoker.wire.shim import Container, Network, RegistryAuth

FULL = """\
type: task
image: registry.example.com:5000/team/train:v1
registry_auth: {username: me, password: swordfish}
entrypoint: /usr/bin/env -i
user: app:staff
privileged: true
docker: true
ports: [8000, 9000]
commands: [python train.py]
resources: {shm_size: 2GB, gpu: 1}
"""


def test_every_key_becomes_an_order() -> None:
    task = load(FULL)
    made = to_container(task, 0, Images(), whole=False)
    assert made is not None
    assert made.model_dump() == Container(
        image="registry.example.com:5000/team/train:v1",
        registry_auth=RegistryAuth(username="me", password="swordfish"),
        entrypoint=("/usr/bin/env", "-i"), user="app:staff", privileged=True, shm_mb=2048, network=Network.BRIDGE,
        ports=(8000, 9000), docker=True,
    ).model_dump()  # fmt: skip
    assert to_policy(task).privileged
    assert first_request(task).container
    assert restored(stored(task)) == task


def test_a_task_without_an_image_is_a_process() -> None:
    task = load("{type: task, commands: [echo]}")
    assert to_container(task, 0, Images(), whole=True) is None
    assert not first_request(task).container
    assert to_policy(task).waiting_runner_s == 600


def test_one_that_has_the_whole_machine_has_its_network_too() -> None:
    made = to_container(load("{type: task, image: x, commands: [echo]}"), 0, Images(), whole=True)
    assert made is not None
    assert made.network is Network.HOST


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("{type: task, python: 3.10, commands: [x]}", "python:3.10-slim"),
        ('{type: task, python: "3.12.1", commands: [x]}', "python:3.12.1-slim"),
        ("{type: task, python: 3.12, commands: [x], resources: {gpu: 1}}", "cuda-py3.12"),
        ("{type: task, docker: true, commands: [x]}", "docker:cli"),
        ("{type: task, docker: true, python: 3.12, commands: [x]}", "python:3.12-slim"),
    ],
)
def test_the_server_says_which_image_has_a_python(text: str, image: str) -> None:
    made = to_container(load(text), 0, Images.of({"STOKER_IMAGE_CUDA": "cuda-py{python}"}), whole=False)
    assert made is not None
    assert made.image == image


def test_groups_have_their_own_memory_to_share() -> None:
    task = load(
        "{type: task, image: x, commands: [y], resources: {shm_size: 1GB},"
        " groups: [{nodes: 1}, {nodes: 2, resources: {shm_size: 3GB}}]}"
    )
    made = [to_container(task, node, Images(), whole=True) for node in range(3)]
    assert [one.shm_mb for one in made if one] == [1024, 3072, 3072]


def test_what_is_asked_of_a_machine_is_kept() -> None:
    request = first_request(load("{type: task, image: x, commands: [y]}"))
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request


@pytest.mark.parametrize(
    ("lines", "key", "says", "hint"),
    [
        ("imge: x", "imge", "no such key", "Did you mean image?"),
        ("image: Python:3", "image", "expected the name of an image", "Did you mean python:3?"),
        ("image: a b", "image", "expected the name of an image", "For example"),
        ("image: https://ghcr.io/a/b", "image", "expected the name of an image", "Did you mean ghcr.io/a/b?"),
        ("python: 2.7", "python", "expected a version of Python", '"3.12"'),
        ("image: x\npython: 3.12", "python", "do not go together", "its own Python"),
        ("user: app", "user", "for tasks that run in a container", "Say image or python"),
        ("image: x\nuser: a b", "user", "expected a user", "1000:1000"),
        ("ports: [80]", "ports", "for tasks that run in a container", "Say image or python"),
        ("image: x\nports: [0]", "ports.0", "at least 1", ""),
        ("image: x\nports: ['8000:80']", "ports.0", "expected a port of the container", "Write 80: "),
        ("image: x\nports: 80", "ports", "expected a list, got 80", "Write [80]."),
        ("image: x\nports: [http]", "ports.0", "expected a whole number", ""),
        ("privileged: true", "privileged", "for tasks that run in a container", ""),
        ("image: x\nprivileged: yes", "privileged", "expected true or false", ""),
        ("resources: {shm_size: 1GB}", "resources.shm_size", "for tasks that run in a container", ""),
        ("image: x\nresources: {shm_size: big}", "resources.shm_size", "'big' is no size", "Write it as 512MB or 8GB."),
        ("image: x\nresources: {shm_size: 1GB..2GB}", "resources.shm_size", "expected one size", "8GB"),
        ('image: x\nentrypoint: "a \'b"', "entrypoint", "no words", "quotes"),
        ("python: 3.12\nregistry_auth: {username: a, password: b}", "registry_auth", "for an image of yours", "image"),
        ("image: x\nregistry_auth: {username: a}", "registry_auth.password", "it is missing", ""),
        ("image: x\nregistry_auth: {username: a, pasword: b}", "registry_auth.pasword", "no such key", "password?"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(lines: str, key: str, says: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        load(f"type: task\ncommands: [x]\n{lines}")
    found = [one for one in refused.value.problems if one.key == key]
    assert found, refused.value.problems
    assert says in found[0].message
    assert hint in found[0].hint
    assert found[0].line is not None
    assert found[0].line >= 3


def test_an_image_may_have_its_own_program() -> None:
    assert load("{type: task, image: x}").commands == ()
    with pytest.raises(Invalid):
        load("{type: task, python: 3.12}")


def test_no_password_is_ever_shown() -> None:
    task = load(FULL)
    shown = without_secrets(to_json(task))
    assert shown["registry_auth"] == {"username": "me", "password": HIDDEN}
    assert "swordfish" not in repr(task)
    assert "swordfish" not in repr(to_container(task, 0, Images(), whole=False))


@pytest.mark.parametrize("given", [17, ["swordfish"], {"username": "me", "password": ["swordfish"]}, "me:swordfish"])
def test_no_password_is_repeated_by_an_error(given: Any) -> None:
    with pytest.raises(Invalid) as refused:
        parse({"type": "task", "image": "x", "commands": ["y"], "registry_auth": given})
    assert "swordfish" not in json.dumps(body_of(refused.value).model_dump(mode="json"))
