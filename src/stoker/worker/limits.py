"""The named maxima and periods of a worker, in one place."""

from typing import Final

INLINE_BYTES: Final = 16 * 1024
"""Of one stream: an output that is not longer travels with the report of its end."""
PIECE_BYTES: Final = 1024 * 1024
"""Of a longer one, in one request."""
REPORT_BYTES: Final = 2 * 1024 * 1024
"""Of outputs and results in one report, about."""
MOST_RUNNING: Final = 4_096
MOST_PASSED: Final = 256
"""Tasks behind one that does not fit that are looked at."""
MOST_STREAMS: Final = 4
"""Outputs that are sent at the same time."""
MOST_SPARE_FILES: Final = 64
"""Pairs of output files that are kept for the next tasks."""

TICK_S: Final = 0.25
"""How often things that need no hurry are looked at."""
ANNOUNCE_S: Final = 0.2
"""A task that runs for so long is reported as started before it ends."""
FOLLOW_S: Final = 0.5
"""A task that runs for so long has its output sent while it runs."""
SAMPLE_S: Final = 5.0
MEMORY_S: Final = 1.0
"""How often tasks that asked for memory are held against what they take; who is younger is left alone."""
SWEEP_S: Final = 1.0
"""How often orphans of tasks that ended are looked for."""
LEFTOVERS_S: Final = 3.0
"""How long the end of a task that was stopped waits for what it left behind to die."""
HORIZON_S: Final = 0.1
"""For so long the tasks that are claimed ahead should last."""
LONG_S: Final = 1.0
"""When tasks take so long, none is claimed ahead."""
GATHER_S: Final = 0.025
"""As long as enough is queued here, ends are gathered for so long: a report costs the server far more than an end."""
STUCK_S: Final = 1.0
"""When nothing could be started for so long, what was claimed ahead goes back."""
PASSING_S: Final = 5.0
"""For so long smaller tasks pass one that does not fit."""
SETTLE_S: Final = 0.02
"""Between the last word and a claim that waits: most often there is something to say by then."""
POLL_S: Final = 30.0
"""How long a claim waits for a first task."""
PAUSE_S: Final = 5.0
"""After the host could not start anything: its disk is full, or it has no process left."""
LEAVE_S: Final = 3.0
"""What a worker keeps of its time to say goodbye."""
HURRY_S: Final = 10.0
"""How long a worker that must end tries to reach a server that does not answer."""
