"""`make sim SEEDS=2000`: a campaign. `make sim SEED=17`: one story, told twice and compared."""

import argparse
import signal
import sys
import time

from tests.sim.campaign import campaign, databases, quiet, save
from tests.sim.history import live

ENOUGH_TO_VISIT_ALL = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first seed of the campaign")
    parser.add_argument("--seed", type=int, help="tell the story of this one")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    # So that its workers and its PostgreSQL go with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    return one(options.seed) if options.seed is not None else many(options.first, options.seeds, options.workers)


def one(seed: int) -> int:
    quiet()
    with databases(1) as (url,):
        history, again = live(seed, url), live(seed, url)
    print("\n".join(history.story))
    same = history.story == again.story
    print(f"seed {seed}: {history.events} events; {'the same' if same else 'ANOTHER'} story the second time")
    print(f"story: {save(history)}")
    print(history.violation or "clean")
    return 1 if history.violation or not same else 0


def many(first: int, seeds: int, workers: int) -> int:
    begun = time.monotonic()
    report = campaign(range(first, first + seeds), workers, progress=True)
    print("\n".join(report.lines()))
    print(f"{time.monotonic() - begun:.0f} s")
    missed = seeds >= ENOUGH_TO_VISIT_ALL and (report.unvisited_rows() or report.unvisited_faults())
    return 1 if report.failed or report.thin or missed else 0


if __name__ == "__main__":
    sys.exit(main())
