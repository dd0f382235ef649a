"""How a process that runs an engine lets Python collect garbage."""

import gc


def tune() -> None:
    """Call it once everything is wired: what is here then stays and is never looked through again.

    A batch of commits makes thousands of objects that die with it. Left to itself the collector would walk
    through all that the process has every few batches, some tens of milliseconds each time.
    """
    gc.collect()
    gc.enable()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
