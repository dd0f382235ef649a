"""The shim's own log: JSON lines in a file that does not grow without end, and that never stops the shim."""

import logging
import os
from pathlib import Path
from typing import Any

import structlog

from stoker.shim.limits import DIARY_BYTES


class Diary:
    """Like a file. When it is full it becomes the old one, of which there is one."""

    def __init__(self, path: Path, most_bytes: int = DIARY_BYTES) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._descriptor = self._open()

    def write(self, text: str) -> None:
        try:
            os.write(self._descriptor, text.encode(errors="backslashreplace"))
            if os.fstat(self._descriptor).st_size > self._most_bytes:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                os.close(self._descriptor)
                self._descriptor = self._open()
        except OSError:
            # A full disk: what we have to say is less important than what we have to do.
            return

    def flush(self) -> None:
        """Nothing waits to be written."""

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def begin(path: Path) -> None:
    diary: Any = Diary(path)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=diary),
        cache_logger_on_first_use=True,
    )
    # What strangers send is answered, and not told here: they could fill this with it.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    # What libraries have to say.
    logging.basicConfig(
        level=logging.WARNING, handlers=[logging.StreamHandler(diary)], format="%(levelname)s %(name)s %(message)s"
    )
