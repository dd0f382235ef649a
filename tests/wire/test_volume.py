"""Volumes as people write them, and what a task mounts."""

import json

import pytest

from stoker.wire.configuration import TaskConfiguration, json_schema, load_any, to_json
from stoker.wire.model import Invalid
from stoker.wire.mount import Mounted, hosts_of, read, volumes_of
from stoker.wire.volume import VolumeConfiguration, exclusive, size_mb
from stoker.wire.volume import to_json as volume_json


def volume(text: str) -> VolumeConfiguration:
    found = load_any(text)
    assert isinstance(found, VolumeConfiguration)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "{type: volume, name: data}",
        "{type: volume, name: data, size: 10GB, fleet: local, exclusive: true, tags: {team: vision}}",
        "{type: volume, name: data, instance: local-9c41ab}",
        "{type: volume, name: sets, kind: nfs, server: nas.lab, path: /srv/sets}",
        "{type: volume, name: sets, kind: nfs, server: '[fe80::1]', path: /srv/sets}",
        "{type: volume, name: disk, kind: dummy, size: 1TB}",
    ],
)
def test_what_is_written_is_read_back_as_the_same(text: str) -> None:
    read = volume(text)
    assert VolumeConfiguration.model_validate(json.loads(json.dumps(volume_json(read)))) == read


def test_what_follows_from_the_kind() -> None:
    assert size_mb(volume("{type: volume, name: a, size: 1.5GB}")) == 1536
    assert exclusive(volume("{type: volume, name: a, kind: dummy}"))
    assert not exclusive(volume("{type: volume, name: a}"))


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("type: volume\nname: X_1", 2, "name", "expected"),
        ("type: volume\nname: a\nsize: 8", 3, "size", "'8' is no size"),
        ("type: volume\nname: a\nsize: 1GB..2GB", 3, "size", "expected one size"),
        ("type: volume\nname: a\nkind: nfs\nserver: a b\npath: /x", 4, "server", "the name or the address of a host"),
        ("type: volume\nname: a\nkind: nfs\nserver: nas\npath: /x,y", 5, "path", "an absolute path without spaces"),
        ("type: volume\nname: a\nkind: nfs\nserver: nas\npath: /x\nsize: 1GB", 6, "size", "wherever its jobs are"),
        ("type: volume\nname: a\ninstance: x\nfleet: y", 4, "fleet", "the instance says where it is"),
        ("type: volume\nname: a\nkind: dummy\nfleet: y", 4, "fleet", "goes where its job is"),
        ("type: volume\nname: a\nexclusive: 'yes'", 3, "exclusive", "expected true or false"),
        ("type: volume\nname: a\ntags: [x]", 3, "tags", "expected a map"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, key: str, words: str) -> None:
    with pytest.raises(Invalid) as refused:
        load_any(text)
    (problem,) = refused.value.problems
    assert (problem.line, problem.key) == (line, key)
    assert words in problem.message


def test_the_ways_to_write_a_mount_are_one() -> None:
    task = load_any(
        "{type: task, commands: [x], volumes: ['a:/data/', {volume: b, path: /b, read_only: true}, '/srv/x:/x:ro', "
        "c:d:rw]}"
    )
    assert isinstance(task, TaskConfiguration)
    assert task.volumes == ("a:/data", "b:/b:ro", "/srv/x:/x:ro", "c:d")
    assert [read(one) for one in task.volumes][1:3] == [
        Mounted("b", "", "/b", True),
        Mounted("", "/srv/x", "/x", True),
    ]
    assert volumes_of(task.volumes) == ["a", "b", "c"]
    assert [one.host for one in hosts_of(task.volumes)] == ["/srv/x"]
    assert to_json(task)["volumes"] == ["a:/data", "b:/b:ro", "/srv/x:/x:ro", "c:d"]


def test_editors_have_a_schema() -> None:
    schema = json_schema(VolumeConfiguration)
    assert schema["required"] == ["type", "name"]
    assert "volumes" in json_schema()["properties"]
