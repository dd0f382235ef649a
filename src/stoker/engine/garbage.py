"""How a process that runs an engine lets Python collect garbage."""

import gc


def tune() -> None:
    """Call it once everything is wired: what is here then stays and is never looked through again.

    A batch of commits makes thousands of objects that die with it. Left to itself the collector would walk
    through all that the process has every few batches, some tens of milliseconds each time. The middle generation is
    small for the same reason: a graph on its way in makes objects that stay, and who walks through two hundred thousand
    of them lets everybody wait.
    """
    gc.collect()
    gc.enable()
    gc.freeze()
    gc.set_threshold(5_000, 3, 600)
