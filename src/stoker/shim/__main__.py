"""`python -m stoker.shim --home DIR`."""

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from stoker.core.errors import StokerError
from stoker.shim.start import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="stoker shim", description="The agent on a host: runs tasks.")
    keeps = "where it keeps everything; settings.json there may describe the host's GPUs"
    parser.add_argument("--home", type=Path, required=True, help=keeps)
    parser.add_argument("--detach", action="store_true", help="outlive the session in which it was started")
    said = parser.parse_args()
    if said.detach:
        # Who leads a session has one of its own already.
        with suppress(PermissionError):
            os.setsid()
    try:
        serve(said.home)
    except StokerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
