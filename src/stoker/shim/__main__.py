"""`python -m stoker.shim --home DIR`."""

import argparse
import sys
from pathlib import Path

from stoker.core.errors import StokerError
from stoker.shim.start import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="stoker shim", description="The agent on a host: runs tasks.")
    parser.add_argument("--home", type=Path, required=True, help="where it keeps everything")
    try:
        serve(parser.parse_args().home)
    except StokerError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
