"""A directory for one measurement, on the disk that homes are usually on."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="stoker-bench-", dir="/var/tmp"))
    # PostgreSQL's account and users of jobs pass through it.
    home.chmod(0o711)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)
