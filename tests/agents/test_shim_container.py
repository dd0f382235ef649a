"""What the engine is asked for, how far a pull is, which images go: without an engine."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from stoker.core.errors import UserError
from stoker.core.shim_task import Port
from stoker.runner.box import find_account
from stoker.shim.container import Bind, Plan, body, box_of, name_of
from stoker.shim.engine import find_socket
from stoker.shim.image import DEFAULT_REGISTRY, Image, Layers, header, refused, registry, tagged
from stoker.shim.limits import IMAGE_UNUSED_S
from stoker.shim.port import Ports
from stoker.shim.prune import Disk, to_prune
from stoker.shim.vessel import Ended, demultiplexed
from stoker.wire.shim import Container, HostGpu, Network, RegistryAuth, TaskOrder

ID, OTHER = UUID(int=7), UUID(int=8)
IMAGE = Image("sha256:abc", {"PATH": "/opt/bin", "LD_PRELOAD": "x.so"}, "app", ("/entry",), ("command",))


def made(image: Image = IMAGE, *, order: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"id": ID, "fence": 1, "name": "a-run", "project_id": ID, "token": "t" * 32}
    task = TaskOrder(**plain | (order or {}), container=Container(image="x", **more.pop("container", {})))
    plan = Plan(ID, "home", task, image, ["/stoker/bundle/lib/ld.so", "x"], Path("/b"), Path("/h/box"), **more)
    return body(plan)


def test_only_what_is_the_tasks_own_is_mounted() -> None:
    mounts = made()["HostConfig"]["Mounts"]
    assert [(one["Source"], one["Target"], one["ReadOnly"]) for one in mounts] == [
        ("/b", "/stoker/bundle", True), ("/h/box", "/stoker/task", False),
    ]  # fmt: skip
    assert made(binds=[Bind("/data", "/data")])["HostConfig"]["Mounts"][-1]["Source"] == "/data"
    asked = made(container={"docker": True}, engine_socket="/run/its.sock")["HostConfig"]["Mounts"][-1]
    assert (asked["Source"], asked["Target"]) == ("/run/its.sock", "/var/run/docker.sock")


def test_its_name_its_labels_and_whom_it_begins_as() -> None:
    asked = made()
    assert name_of("home", ID) == f"stoker-home-{ID}"
    assert asked["Labels"] == {"io.stoker.task": str(ID), "io.stoker.home": "home"}
    assert (asked["Image"], asked["User"], asked["Entrypoint"][-1], asked["Cmd"]) == ("sha256:abc", "0:0", "x", [])
    assert asked["Env"] == ["LD_PRELOAD=", "NVIDIA_VISIBLE_DEVICES=void"], "the image's own are the job's"
    assert asked["HostConfig"]["RestartPolicy"] == {"Name": "no"}


def test_its_limits_and_rights() -> None:
    host = made(order={"cpu": 1.5, "memory_mb": 512}, container={"shm_mb": 64, "privileged": True})["HostConfig"]
    assert host["NanoCpus"] == 1_500_000_000
    assert host["Memory"] == host["MemorySwap"] == 512 << 20
    assert host["ShmSize"] == 64 << 20
    assert host["Privileged"] is True
    assert made()["HostConfig"]["Privileged"] is False
    assert not {"NanoCpus", "Memory", "ShmSize"} & made()["HostConfig"].keys()


def test_its_network() -> None:
    bridge = made(container={"ports": (80,)}, ports=[Port(80, 4711)])
    assert bridge["HostConfig"]["NetworkMode"] == "bridge"
    assert bridge["HostConfig"]["PortBindings"] == {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": "4711"}]}
    host = made(container={"ports": (80,), "network": Network.HOST}, ports=[Port(80, 80)])
    assert host["HostConfig"]["NetworkMode"] == "host"
    assert (host["ExposedPorts"], "PortBindings" in host["HostConfig"]) == ({}, False)


def test_gpus_by_their_ids() -> None:
    gpus = [HostGpu(index=n, id=f"GPU-{n}", name="A100", memory_mb=1, vendor="nvidia") for n in (0, 3)]
    asked = made(gpus=gpus)
    assert asked["HostConfig"]["DeviceRequests"] == [{"DeviceIDs": ["GPU-0", "GPU-3"], "Capabilities": [["gpu"]]}]
    assert not any(one.startswith("NVIDIA_VISIBLE_DEVICES") for one in asked["Env"])
    with pytest.raises(UserError, match="of amd"):
        made(gpus=[HostGpu(index=0, id="x", name="MI300", memory_mb=1, vendor="amd")])


def test_what_the_runner_is_told_of_the_image() -> None:
    box = box_of(Container(image="x"), IMAGE)
    assert (box.user, box.env, box.entrypoint, box.program) == ("app", IMAGE.env, (), ("/entry", "command"))
    box = box_of(Container(image="x", user="0", entrypoint=("/mine",)), IMAGE)
    assert (box.user, box.entrypoint, box.program) == ("0", ("/mine",), ("/mine",))


@pytest.mark.parametrize(
    ("said", "name", "where"),
    [
        ("busybox", "busybox:latest", DEFAULT_REGISTRY), ("team/x:v1", "team/x:v1", DEFAULT_REGISTRY),
        ("localhost/x", "localhost/x:latest", "localhost"), ("r.example.com:5000/x", "r.example.com:5000/x:latest",
        "r.example.com:5000"), ("x@sha256:" + "a" * 64, "x@sha256:" + "a" * 64, DEFAULT_REGISTRY),
    ],
)  # fmt: skip
def test_names_of_images(said: str, name: str, where: str) -> None:
    assert (tagged(said), registry(said)) == (name, where)


def test_a_password_goes_to_the_engine_alone() -> None:
    auth = RegistryAuth(username="me", password="swordfish")
    assert "swordfish" not in repr(auth)
    assert set(header("x", auth)) == {"X-Registry-Auth"}
    assert "swordfish" not in str(header("x", auth))
    assert header("x", None) == {}


def test_how_far_a_pull_is() -> None:
    layers = Layers()
    for id, status, current, total in (
        ("a", "Pulling fs layer", None, None), ("a", "Downloading", 10, 100), ("b", "Downloading", 5, 50),
        ("a", "Downloading", 60, 100), ("c", "Already exists", None, None), ("b", "Download complete", None, None),
        ("a", "Extracting", 1, 100),
    ):  # fmt: skip
        layers.heard(
            {"id": id, "status": status, "progressDetail": {"current": current, "total": total} if current else {}}
        )
    assert (layers.pulled_bytes, layers.total_bytes) == (150, 150)
    assert (Layers().pulled_bytes, Layers().total_bytes) == (0, None)


def test_images_go_by_age_and_when_there_is_no_room_and_never_while_in_use() -> None:
    now, sizes = 10 * IMAGE_UNUSED_S, {"old": 10, "older": 10, "used": 10, "new": 10, "newer": 10, "theirs": 10}
    used_at = {"older": 1.0, "old": 2.0, "used": 0.0, "newer": now - 1, "new": now - 2, "gone": 0.0}
    room, none = Disk(100, 10), Disk(0, 1000)
    assert to_prune(used_at, sizes, {"used"}, room, now) == ["older", "old"]
    assert to_prune(used_at, sizes, {"used"}, none, now) == ["older", "old", "new", "newer"], "the oldest first"
    assert to_prune(used_at, sizes, {"used"}, Disk(0, 25), now) == ["older", "old", "new"], "and no more than needed"
    assert to_prune({}, sizes, (), none, now) == [], "what others brought is theirs"


def test_users_as_the_image_knows_them(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("# a comment\nroot:x:0:0::/home:/bin/sh\napp:x:12:13::/srv/app:\nbad:x:no:1:::\n")
    (tmp_path / "group").write_text("app:x:13:\nvideo:x:44:other,app\nstaff:x:50:\n")
    found = find_account("app", tmp_path)
    assert (found.uid, found.gid, found.groups, found.home) == (12, 13, (13, 44), "/srv/app")
    assert find_account("12", tmp_path) == found
    assert find_account("app:staff", tmp_path).groups == (50,)
    assert (find_account("", tmp_path).uid, find_account("", tmp_path).home) == (0, "/home")
    unknown = find_account("4242:17", tmp_path)
    assert (unknown.uid, unknown.gid, unknown.groups, unknown.home) == (4242, 17, (17,), "/")
    assert find_account("0", tmp_path / "nothing").uid == 0, "an image without any list"
    for said in ("nobody", "bad", "app:nobody"):
        with pytest.raises(UserError, match=r"There is no (user|group)"):
            find_account(said, tmp_path)


async def test_ports_are_given_to_one_task_only() -> None:
    ports = Ports()
    mine, theirs = ports.take(ID, (80, 80, 81)), ports.take(OTHER, (80,))
    assert [port.inside for port in mine] == [80, 81]
    assert len({port.on_host for port in (*mine, *theirs)}) == 3
    ports.release(ID)
    assert ports.held == {theirs[0].on_host: OTHER}
    again = Ports()
    again.adopt(OTHER, theirs)
    assert again.held == ports.held
    await asyncio.sleep(0)


def test_what_a_container_said_and_how_it_ended() -> None:
    pieces = b"\1\0\0\0\0\0\0\3one\2\0\0\0\0\0\0\4\ntwo"
    assert demultiplexed(pieces) == b"one\ntwo"
    assert demultiplexed(b"") == b""
    assert "not there any more" in Ended().sentence
    assert Ended(137, True).sentence == "Its container ended for memory (exit code 137) before its commands had."
    assert Ended(127, error="no such file.").sentence.endswith("The engine says: no such file.")


def test_where_the_engine_is() -> None:
    assert find_socket({"DOCKER_HOST": "unix:///x/docker.sock"}) == Path("/x/docker.sock")
    assert find_socket({"DOCKER_HOST": "tcp://10.0.0.1"}) is None or Path("/run/docker.sock").exists()


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (': Head "http://h/v2/x/manifests/latest": no basic auth credentials.', "say registry_auth"),
        (": pull access denied for x, repository does not exist or may require 'docker login'.", "say registry_auth"),
        (": unauthorized: authentication required.", "say registry_auth"),
        (". The container engine says: manifest for x:v9 not found: manifest unknown.", "its name and its tag"),
        (": dial tcp: lookup registry-1.docker.io: no such host.", "whether its host reaches"),
        (": no space left on device.", ""),
    ],
)
def test_what_cannot_be_pulled_says_what_to_do_where_that_is_known(said: str, hint: str) -> None:
    error = refused("x", said)
    assert error.sentence == f"The image x cannot be pulled{said}"
    assert hint in error.hint and bool(error.hint) is bool(hint)
