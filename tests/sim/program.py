"""How the program of a run behaves, and how it ends."""

import random
from dataclasses import dataclass

from stoker.core import job_facts as job

EXITS = {0: 60, 1: 14, 42: 10, 137: 4, 2: 8}


@dataclass(slots=True)
class Program:
    """How the program of a run behaves."""

    least_s: float
    most_s: float
    endless: bool = False

    def ends(self, dice: random.Random, failing: int) -> job.Exited:
        weights = [weight * (failing if code else 1) for code, weight in EXITS.items()]
        code = dice.choices(list(EXITS), weights)[0]
        if code == 137:
            return job.Exited(137, signal=9, oom=dice.random() < 0.5)
        return job.Exited(code, setup=code == 2)
