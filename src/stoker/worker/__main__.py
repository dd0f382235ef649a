"""`python -m stoker.worker --url URL --project NAME`: a worker where there is no command line, such as from a bundle.

Its token is in STOKER_TOKEN.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stoker.core.errors import StokerError


def main(argv: Sequence[str] | None = None) -> int:
    said = _parser().parse_args(argv)
    # Before anything large is loaded: the keeper stays as small as it is now.
    from stoker.worker.keeper import keep

    guard = keep()

    from stoker.runner.version import VERSION
    from stoker.wire.duration import parse_duration
    from stoker.worker import host
    from stoker.worker.main import run
    from stoker.worker.settings import Settings

    try:
        gpus = host.gpus(said.gpus, os.environ)
        if said.gpus is not None and not gpus:
            # Those that it has are for others.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        settings = Settings(
            url=said.url,
            token=os.environ.get("STOKER_TOKEN", ""),
            project=said.project,
            name=said.name or host.name(),
            directory=said.dir.absolute(),
            total=host.total(said.cpus, said.memory, len(gpus), {}),
            gpus=gpus,
            group=said.group,
            time_limit_s=parse_duration(said.time_limit),
            idle_timeout_s=parse_duration(said.idle_timeout),
        )
        run(settings, guard, VERSION)
    except (StokerError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stoker worker", description="Runs tasks on this machine.")
    parser.add_argument("--url", required=True, help="of the server")
    parser.add_argument("--project", required=True, help="whose tasks it runs")
    parser.add_argument("--dir", type=Path, required=True, help="where it keeps its files")
    parser.add_argument("--name", help="what it is called")
    parser.add_argument("--cpus", type=float, help="how many CPUs its tasks may use")
    parser.add_argument("--memory", help="how much memory, such as 8GB")
    parser.add_argument("--gpus", help="how many GPUs, or which ones: 0,3")
    parser.add_argument("--group", help="take tasks of this group only")
    parser.add_argument("--time-limit", help="end within this time, such as 4h")
    parser.add_argument("--idle-timeout", help="end when there was nothing to do for so long")
    return parser


if __name__ == "__main__":
    sys.exit(main())
