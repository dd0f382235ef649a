"""The gate of `process.py` where there is no shell: `gate PROGRAM ARGUMENT …` becomes the program when it may.

It is told by a line of its input, which names the terminal that is wanted, if one is.
"""

import os
import signal
import sys
from typing import Final, NoReturn

_NOT_OPENED: Final = 125
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127


def main(arguments: list[str]) -> NoReturn:
    line = b""
    # Byte by byte: what comes behind the line is not ours.
    while not line.endswith(b"\n"):
        told = os.read(0, 1)
        if not told:
            os._exit(_NOT_OPENED)
        line += told
    # As the leader of a session, whose terminal it becomes.
    terminal = os.open(line.strip() or os.devnull, os.O_RDWR if line.strip() else os.O_RDONLY)
    for descriptor in (0, 1, 2) if line.strip() else (0,):
        os.dup2(terminal, descriptor)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        # Python ignores these, and the program would.
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(arguments[0], arguments, os.environ)
    except OSError as error:
        os.write(2, f"{arguments[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)


if __name__ == "__main__":
    main(sys.argv[1:])
