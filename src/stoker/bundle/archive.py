"""Archives that are the same whenever they are made of the same files."""

import gzip
import hashlib
import os
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

_MADE_AT: Final = 315_532_800
"""1980: some programs find anything earlier strange."""
_LEVEL: Final = 6
_CHUNK: Final = 1 << 20
PROGRAM_MODE: Final = 0o755
FILE_MODE: Final = 0o644


class _Hashing:
    """Passes on what is written, and knows its digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def write(path: Path, files: Mapping[str, Path], programs: Iterable[str]) -> tuple[str, int]:
    """Makes a tar.gz of these files; its SHA-256 and its size. Whoever unpacks it may be anybody."""
    executable = frozenset(programs)
    with open(path, "wb") as raw:
        hashing = _Hashing(raw)
        with (
            gzip.GzipFile(
                filename="", mode="wb", compresslevel=_LEVEL, fileobj=cast(IO[bytes], hashing), mtime=0
            ) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as tar,
        ):
            for directory in _directories(files):
                tar.addfile(_member(directory, tarfile.DIRTYPE, PROGRAM_MODE, 0))
            for name in sorted(files):
                mode = PROGRAM_MODE if name in executable else FILE_MODE
                with open(files[name], "rb") as file:
                    tar.addfile(_member(name, tarfile.REGTYPE, mode, os.fstat(file.fileno()).st_size), file)
        return hashing.digest.hexdigest(), hashing.size


def _directories(names: Iterable[str]) -> list[str]:
    return sorted({str(above) for name in names for above in PurePosixPath(name).parents} - {"."})


def _member(name: str, kind: bytes, mode: int, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.mode, member.size, member.mtime = kind, mode, size, _MADE_AT
    return member


def unpack(path: Path, root: Path) -> None:
    """An archive of ours. Modes are as they were written, whatever our umask is."""
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            place = root / member.name
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                file = tar.extractfile(member)
                assert file is not None
                with file, open(place, "wb") as target:
                    while chunk := file.read(_CHUNK):
                        target.write(chunk)
            place.chmod(member.mode)
