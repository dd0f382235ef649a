"""Flags come before the environment, and that before the file; the file is for its owner alone."""

import json
import stat
from pathlib import Path

import pytest

from stoker.client import config
from stoker.core.errors import UserError
from tests.cli.conftest import call


def write(home: Path, text: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / "config.yml").write_text(text)
    return home


def test_flags_before_the_environment_before_the_file(tmp_path: Path) -> None:
    home = write(tmp_path / "home", 'url: "http://file:1"\ntoken: "of-file"\nproject: "file"\n')
    environ = {"STOKER_HOME": str(home), "STOKER_URL": "http://env:2", "STOKER_TOKEN": "of-env"}
    found = config.resolve(environ, url="http://flag:3")
    assert (found.url, found.token, found.project) == ("http://flag:3", "of-env", "file")
    assert found.origins == {"home": "STOKER_HOME", "url": "flag", "token": "STOKER_TOKEN", "project": "config.yml"}


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    home = write(tmp_path / "home", 'url: "http://file:1"\n')
    assert config.resolve({"STOKER_HOME": str(home), "STOKER_URL": ""}).url == "http://file:1"


def test_without_anything_there_is_a_project_and_no_server(tmp_path: Path) -> None:
    found = config.resolve({"STOKER_HOME": str(tmp_path / "none")})
    assert (found.url, found.token, found.project) == ("", "", "main")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("url: http://a:1\n", {"url": "http://a:1"}),
        ('# a note\n\nurl:   "http://a:1"\nproject: x\n', {"url": "http://a:1", "project": "x"}),
        ("{url: 'http://a:1', project: x}", {"url": "http://a:1", "project": "x"}),
        ("url: http://a:1 # mine\n", {"url": "http://a:1"}),
        ("token: 'it''s'\n", {"token": "it's"}),
        ('token: "a\\"b\\\\"\n', {"token": 'a"b\\'}),
        ("project: null\nurl: x\n", {"url": "x"}),
        ("project: 12\n", {"project": "12"}),
        ("", {}),
    ],
)
def test_the_file_is_yaml_as_people_write_it(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    """What `set` writes is read without a YAML library; it has to mean the same as what people write."""
    home = write(tmp_path / "home", text)
    assert config.read(home / "config.yml") == expected


@pytest.mark.parametrize("text", ["- a\n- b\n", "url: [\n", "just words\n"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    home = write(tmp_path / "home", text)
    with pytest.raises(UserError, match=r"config\.yml"):
        config.read(home / "config.yml")


@pytest.mark.parametrize("value", ["plain", 'with "quotes"', "null", "ünï", "a: b", "tab\there", "#no"])
def test_what_is_written_is_read_back(tmp_path: Path, value: str) -> None:
    path = tmp_path / "home" / "config.yml"
    config.change(path, token=value, url="http://a:1")
    config.change(path, project="p")
    assert config.read(path) == {"token": value, "url": "http://a:1", "project": "p"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    config.change(path, token="")
    assert "token" not in config.read(path)


def test_config_shows_where_each_value_comes_from_and_hides_the_token(environ: dict[str, str]) -> None:
    secret = "stk_0123456789abcdefghijklmnop"
    assert call(environ, "config", "set", "token", secret).returncode == 0
    assert call(environ, "config", "set", "url", "http://127.0.0.1:4400").returncode == 0
    shown = call({**environ, "STOKER_PROJECT": "vision"}, "config")
    assert secret.encode() not in shown.stdout
    told = json.loads(call({**environ, "STOKER_PROJECT": "vision"}, "config", "--json").stdout)
    assert told["url"] == {"value": "http://127.0.0.1:4400", "from": "config.yml"}
    assert told["project"] == {"value": "vision", "from": "STOKER_PROJECT"}
    assert call(environ, "config", "get", "token").stdout.decode().strip() == secret
    assert call(environ, "config", "unset", "token").returncode == 0
    assert json.loads(call(environ, "config", "--json").stdout)["token"] == {"value": "", "from": None}


def test_config_refuses_what_it_does_not_know(environ: dict[str, str]) -> None:
    refused = call(environ, "config", "set", "ulr", "x")
    assert refused.returncode == 2
    assert b"Did you mean url?" in refused.stderr
    assert call(environ, "config", "set", "url", "ftp://x").returncode == 1


def test_a_flag_may_stand_before_or_behind_the_command(environ: dict[str, str]) -> None:
    before = call(environ, "--url", "http://127.0.0.1:1", "ps")
    behind = call(environ, "ps", "--url", "http://127.0.0.1:1")
    assert before.returncode == behind.returncode == 1
    assert before.stderr == behind.stderr
    assert b"`stoker up`" in before.stderr
