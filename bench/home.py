"""What a measurement begins with: a directory on the disk that homes are usually on, and Stoker as it is installed."""

import compileall
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import stoker


@contextmanager
def temporary_home() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="stoker-bench-", dir="/var/tmp"))
    # PostgreSQL's account and users of jobs pass through it.
    home.chmod(0o711)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def compiled() -> None:
    """As pip leaves an installation. A checkout has no bytecode where PYTHONDONTWRITEBYTECODE is set, and then every
    command compiles what it imports."""
    compileall.compile_dir(str(Path(stoker.__file__).parent), quiet=1)
