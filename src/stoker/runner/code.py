"""The archive with a job's code: unpacked into its directory with the rights of its user, within limits.

It may come from a stranger, so it holds files, directories and links among them and nothing else. No member is written
through a link, and a link goes up only at its beginning and never above the directory: by that, none leads out of it,
whatever the others do. Python's own filters would do as much, but the Python of Debian 12 is older than they are.
"""

import bz2  # noqa: F401 - tarfile imports these when it needs them, which is when we have the job's rights
import gzip  # noqa: F401
import lzma
import os
import shutil
import stat
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.core.errors import UserError
from stoker.runner.limits import CODE_FILES, CODE_UNPACKED_BYTES
from stoker.runner.tenant import User, files_of

_BAD: Final = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def unpack(archive: Path, work: Path, user: User | None) -> None:
    """Everything or nothing; what lies in `work` already is replaced."""
    with open(archive, "rb") as file, files_of(user):
        _empty(work)
        try:
            with tarfile.open(fileobj=file, mode="r:*") as tar:
                _unpack(tar, work)
        except _BAD as error:
            _empty(work)
            # The first line: behind it tarfile tells what each of its ways to read has to say.
            reason = str(error).partition("\n")[0].rstrip(":.")
            raise UserError(f"The archive cannot be unpacked: {reason}.", code="bad_archive") from error
        except BaseException:
            _empty(work)
            raise


def _unpack(tar: tarfile.TarFile, work: Path) -> None:
    size = 0
    for number, member in enumerate(tar):
        size += member.size
        if number >= CODE_FILES:
            raise tarfile.TarError(f"it has more than {CODE_FILES} files")
        if size > CODE_UNPACKED_BYTES:
            raise tarfile.TarError(f"it unpacks to more than {CODE_UNPACKED_BYTES} bytes")
        _place(tar, member, work)


def _place(tar: tarfile.TarFile, member: tarfile.TarInfo, work: Path) -> None:
    *above, name = _parts(member.name) or [""]
    parent = _directory(work, above)
    if member.isdir():
        _directory(parent, [name] if name else [])
        return
    if not name:
        raise tarfile.TarError("it has a file without a name")
    path = parent / name
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(path.lstat().st_mode):
            raise tarfile.TarError(f"{member.name!r} is a directory in it and something else")
        path.unlink()
    if member.issym():
        path.symlink_to(_target(member, len(above)))
    elif member.islnk():
        os.link(_file(member, work), path, follow_symlinks=False)
    elif member.isreg():
        _write(tar, member, path)
    else:
        raise tarfile.TarError(f"{member.name!r} is neither a file nor a directory nor a link")


def _parts(name: str) -> list[str]:
    """Of a path that begins at the directory, whatever it says."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise tarfile.TarError(f"{name!r} leads out of it")
    return parts


def _directory(parent: Path, parts: list[str]) -> Path:
    """Made where it is missing, and never behind a link."""
    for part in parts:
        parent /= part
        with suppress(FileExistsError):
            parent.mkdir()
        if not stat.S_ISDIR(parent.lstat().st_mode):
            raise tarfile.TarError(f"{parent.name!r} is a directory in it and something else")
    return parent


def _target(member: tarfile.TarInfo, depth: int) -> str:
    parts = [part for part in member.linkname.split("/") if part not in ("", ".")]
    ups = next((place for place, part in enumerate(parts) if part != ".."), len(parts))
    if member.linkname.startswith("/") or ups > depth or ".." in parts[ups:]:
        raise tarfile.TarError(f"{member.name!r} is a link that leads out of it")
    return member.linkname


def _file(member: tarfile.TarInfo, work: Path) -> Path:
    """What a hard link is another name of."""
    path = work
    for part in _parts(member.linkname):
        if path.is_symlink():
            break
        path /= part
    if path.is_symlink() or not path.is_file():
        raise tarfile.TarError(f"{member.name!r} is a link to something that is not a file in it")
    return path


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = tar.extractfile(member)
    assert content is not None, "it is a regular file"
    with content, open(os.open(path, _NEW, 0o600), "wb") as file:
        shutil.copyfileobj(content, file)
        # Nobody but its owner may write to it, and nobody gets more rights by running it.
        os.fchmod(file.fileno(), member.mode & 0o755 | 0o600)
    os.utime(path, (member.mtime, member.mtime))


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
