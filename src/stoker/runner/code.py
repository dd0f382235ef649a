"""The archive with a job's code: unpacked into its directory with the rights of its user, within limits."""

import bz2  # noqa: F401 - tarfile imports these when it needs them, which is when we have the job's rights
import gzip  # noqa: F401
import lzma
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Final

from stoker.core.errors import UserError
from stoker.runner.limits import CODE_FILES, CODE_UNPACKED_BYTES
from stoker.runner.tenant import User, files_of

_BAD: Final = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError)


def unpack(archive: Path, work: Path, user: User | None) -> None:
    """Everything or nothing; what lies in `work` already is replaced."""
    with open(archive, "rb") as file, files_of(user):
        _empty(work)
        try:
            with tarfile.open(fileobj=file, mode="r:*") as tar:
                tar.extractall(work, filter=_Limits())
        except _BAD as error:
            _empty(work)
            # The first line: behind it tarfile tells what each of its ways to read has to say.
            reason = str(error).partition("\n")[0].rstrip(":.")
            raise UserError(f"The archive cannot be unpacked: {reason}.", code="bad_archive") from error
        except BaseException:
            _empty(work)
            raise


class _Limits:
    """Python's own filter for archives of strangers, with a bound on what comes out of them."""

    def __init__(self) -> None:
        self._files, self._bytes = 0, 0

    def __call__(self, member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        self._files += 1
        self._bytes += member.size
        if self._files > CODE_FILES:
            raise tarfile.TarError(f"it has more than {CODE_FILES} files")
        if self._bytes > CODE_UNPACKED_BYTES:
            raise tarfile.TarError(f"it unpacks to more than {CODE_UNPACKED_BYTES} bytes")
        return tarfile.data_filter(member, path)


def _empty(directory: Path) -> None:
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
