"""`python -m stoker.runner --directory DIR`: a runner that nobody forked, such as the first process of a container."""

import argparse
import signal
import sys
from pathlib import Path

from stoker.core.errors import StokerError


def main() -> int:
    parser = argparse.ArgumentParser(prog="stoker runner", description="The agent of one job.")
    parser.add_argument("--directory", type=Path, required=True, help="of the task, with its runner.json")
    directory: Path = parser.parse_args().directory
    # Until there is somebody to hear it. As the first process of a container we would never get it otherwise.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # We speak through a unix socket only. Reading the host's certificates for nothing would be a fifth of our start.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    from stoker.runner.main import cold_start

    try:
        cold_start(directory.absolute())
    except StokerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
