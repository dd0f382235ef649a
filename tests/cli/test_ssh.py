"""Hosts by SSH as a person at a terminal sees them: keys that are read where they are, and keys that have changed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.fleet_watch import now_of
from tests.cli.conftest import Real

pytestmark = pytest.mark.xdist_group("cli")

NOWHERE = """type: fleet
name: nowhere
ssh_config:
  user: root
  identity_file: id
  hosts: [127.0.0.1]
  port: 1
"""


def said(told: Any) -> str:
    return (told.stdout + told.stderr).decode()  # type: ignore[no-any-return]


def test_the_project_has_a_key_of_its_own(real: Real) -> None:
    first = real("project", "key").stdout.decode()
    assert first.startswith("ssh-ed25519 ") and first.endswith(" stoker\n")
    assert real("project", "key").stdout.decode() == first
    assert json.loads(real("project", "key", "--json").stdout)["public_key"] == first.strip()


def test_a_key_is_read_where_it_is_and_what_is_none_is_told_with_its_line(real: Real, tmp_path: Path) -> None:
    file = tmp_path / "nowhere.yaml"
    file.write_text(NOWHERE)
    missing = real("apply", "-y", "-f", str(file))
    assert missing.returncode == 1
    assert "line 5: ssh_config.identity_file: id is not there, and the server has no key by that name" in said(missing)
    assert "`stoker project key`" in said(missing)
    (tmp_path / "id").write_text("ssh-ed25519 AAAA public")
    wrong = real("apply", "-y", "-f", str(file))
    assert "line 5: ssh_config.identity_file: id is no private key." in said(wrong)
    (tmp_path / "id").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nnonsense\n-----END OPENSSH PRIVATE KEY-----\n")
    unusable = real("apply", "-y", "-f", str(file))
    assert unusable.returncode == 1 and "id is no key that a server can use" in said(unusable)
    assert real("fleet", "get", "nowhere").returncode == 1, "nothing was made"


@pytest.mark.parametrize("form", [["-t", "ed25519"], ["-t", "rsa", "-m", "PEM"], ["-t", "ed25519", "-m", "PKCS8"]])
def test_a_key_with_a_passphrase_is_refused_before_it_is_sent(tmp_path: Path, form: list[str], real: Real) -> None:
    """Nobody sits at the server who could be asked."""
    for secret, taken in (("open sesame", False), ("", True)):
        (tmp_path / "id").unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", *form, "-N", secret, "-f", tmp_path / "id"], check=True, input=b"y\n")
        (tmp_path / "nowhere.yaml").write_text(NOWHERE)
        told = said(real("apply", "--dry-run", "-f", str(tmp_path / "nowhere.yaml")))
        assert ("line 5: ssh_config.identity_file: id has a passphrase" in told) is not taken, told
        assert ("would be made" in told) is taken, told


def test_a_key_in_the_home_of_nobody_is_a_mistake_in_the_file(tmp_path: Path, real: Real) -> None:
    (tmp_path / "nowhere.yaml").write_text(NOWHERE.replace("id\n", "~nobody-at-all/id\n"))
    told = said(real("apply", "--dry-run", "-f", str(tmp_path / "nowhere.yaml")))
    assert "line 5: ssh_config.identity_file: ~nobody-at-all/id is in the home of nobody here" in told


def test_what_only_the_server_knows_to_be_wrong_has_its_line_too(tmp_path: Path, real: Real) -> None:
    for line, wrong in (
        ("fleets: [locl]", "fleets: there is no fleet locl. Did you mean local?"),
        ("volumes: ['nothing:here']", "volumes: there is no volume nothing."),
    ):
        (tmp_path / "x.yaml").write_text(f"type: task\ncommands: [x]\n{line}\n")
        told = said(real("apply", "-y", "-f", str(tmp_path / "x.yaml")))
        assert f"x.yaml: line 3: {wrong}" in told, told


def test_what_stands_in_the_way_is_shown_and_a_host_key_that_nobody_has_seen_is_not(real: Real) -> None:
    """Nobody listens there."""
    made = real("apply", "-y", "-f", "-", stdin=NOWHERE.replace("  identity_file: id\n", "").encode())
    assert made.returncode == 0, said(made)
    assert "+ 127.0.0.1:1" in said(made) and "stoker fleet get -w nowhere" in said(made)
    try:
        (one,) = json.loads(real("instance", "list", "--fleet", "nowhere", "--json").stdout)
        for _ in range(100):
            shown = said(real("instance", "get", one["name"]))
            if "refuses connections" in shown:
                break
        assert "Start sshd there, or correct the port 1" in shown
        assert real("instance", "trust", one["name"]).stdout == b""
        header, row = said(real("instance", "list", "--fleet", "nowhere")).splitlines()
        assert "HOST" in header and row.split()[3] == "127.0.0.1:1" and "refuses connections" in row
        assert "hosts: [127.0.0.1]" in said(real("fleet", "get", "nowhere"))
    finally:
        assert real("fleet", "delete", "-y", "nowhere").returncode == 0


def test_the_step_that_is_under_way_is_what_is_shown() -> None:
    steps = [
        {"step": "check", "state": "done", "message": "fine"},
        {"step": "ship", "state": "doing", "message": "7 %"},
    ]
    assert now_of({"steps": steps, "trouble": ""}) == "ship: 7 %"
    assert now_of({"steps": steps, "trouble": "its disk is full"}) == "its disk is full"
    assert now_of({}) == ""
