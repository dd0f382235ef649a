"""What the shell is told: 0 it went well, 1 the command failed, 2 it was not understood; and how a run ended."""

import signal
from typing import Any, Final

OK: Final = 0
FAILED: Final = 1
RUN_FAILED: Final = 100
RUN_UNFINISHED: Final = 101
RUN_NOT_FOUND: Final = 102
RUN_STOPPED: Final = 103
INTERRUPTED: Final = 128 + signal.SIGINT
READER_GONE: Final = 141
"""128 + SIGPIPE: what a program that the signal ends is reported with."""


def of_run(run: dict[str, Any]) -> int:
    """The job's own exit code when it failed by itself."""
    match run["status"]:
        case "DONE":
            return OK
        case "TERMINATED":
            return RUN_STOPPED
        case "FAILED":
            code = run.get("exit_code")
            return code if isinstance(code, int) and 0 < code < 256 else RUN_FAILED
        case _:
            return RUN_UNFINISHED
