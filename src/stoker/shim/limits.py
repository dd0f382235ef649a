"""The named maxima and periods of a shim, in one place."""

from stoker.runner.limits import BODY_BYTES as JOB_BYTES

# What may be asked.
BODY_BYTES = 256 * 1024 + JOB_BYTES
"""An order carries the job of its runner."""
MOST_TASKS = 5_000
"""Kept at once, terminated ones that nobody removed included."""

DESCRIPTORS = 16_384
"""Of open files; each living task needs one."""

# Starting.
STARTS_AT_ONCE = 8
"""More would only make each of them slower."""
THREADS = 16
"""For what waits on the disk; more than starts, so that these do not hold up everything else."""
ANSWER_STARTED_S = 2.0
"""How long an answer to a submission waits for the start, so that the server can go on at once."""
RUNNER_BORN_S = 15.0
"""From the fork to the runner's first sign of life."""
FORK_SERVER_S = 30.0
"""From its start until it answers; imports from a cold disk take long."""

# Ending.
KILL_MARGIN_S = 5.0
"""Beyond the grace that a job was given, until its runner must have written down how it ended."""
RUNNER_LEAVES_S = 3.0
"""From SIGTERM to SIGKILL, for a runner that has nothing to wait for."""
KILLED_S = 5.0
"""From SIGKILL until a process is gone; one that hangs in the kernel takes longer."""
UNDO_AGAIN_S = (0.2, 1.0, 5.0, 30.0)
"""After the first, second, … failure in a row."""
DISK_FULL_AGAIN_S = 0.5

RUNNER_UP_S, UP_LOOK_S = 3.0, 0.1
"""How long, and how often, a runner that does not listen yet is asked to stop, before it is signalled."""

# Looking.
LOOK_S = 2.0
"""How often we look by ourselves at what no runner told us, and at how long the logs are."""
EXAMINED_S, AILING_EXAMINED_S = 15.0, 1.0
"""How often we look at how the host is, while it is well and while it is not."""
GPUS_EXAMINED_S = 60.0
LEAST_FREE_BYTES, LEAST_FREE_SHARE = 1024**3, 0.01
"""Of its disk, whichever is less: with so little left, the next job fails."""
WORDS_IN_SILENCE = 4
"""How often a runner that counts the server's silence is told that it is there, while it may be silent."""
TAIL_LINES = 10
TAIL_BYTES = 2_000

# Remembering.
REMOVED_KEPT = 10_000
"""Fences of tasks that are gone."""
DIARY_BYTES = 10 * 1024 * 1024
"""Of our own log, before a new one is begun; one old one is kept."""

# Containers.
ENGINE_AGAIN_S = 0.5
"""How often we look for an engine that is not there."""
ENGINE_LOOK_S = 10.0
"""How often all containers are looked at, whatever their engine has said of them."""
PULL_QUIET_S = 300.0
"""A registry that says nothing for so long will not say anything any more."""
PULL_SHOWN_S = 0.5
IMAGE_UNUSED_S = 7 * 24 * 3600.0
"""An image that we pulled and nobody used for so long is removed."""
IMAGES_FREE_BYTES, IMAGES_FREE_SHARE = 20 * 1024**3, 0.10
"""With less left on the disk of the images, whichever is less, the one that was not used for longest is removed."""
IMAGES_GONE_S = 10.0
"""For removing all of them, when nobody comes after us; whoever sent us away waits a little longer than that."""
PRUNE_S = 600.0
