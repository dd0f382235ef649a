"""Everything a runner waits for or keeps is bounded: the named maxima, in one place."""

from typing import Final

# How long a runner waits.
JOB_WAIT_S: Final = 300.0
"""For an order; then it leaves."""
START_WAIT_S: Final = 3600.0
"""For the code and the word to start; then the job ends without having run."""
READERS_WAIT_S: Final = 3600.0
"""For somebody to read the whole log of a job that has ended. It stays on disk for the shim."""
LAST_READERS_WAIT_S: Final = 60.0
"""The same for the runner's own log and for live readers, once the server has the job's log."""
PLACE_LOOK_S: Final = 30.0
"""Between two looks whether the task's directory is still there."""

# The end of a job.
LINGER_S: Final = 0.2
"""Given to what the main shell left behind and still writes, such as a `tee` at the end of its output."""
KILL_S: Final = 10.0
"""Given to killed processes to be gone; what the kernel holds longer than that is reported and left."""
LEFTOVERS_S: Final = 5.0
"""The same where the runner is dead and somebody else cleans up."""

# The log.
SEGMENT_BYTES: Final = 8 * 1024 * 1024
PENDING_BYTES: Final = 1024 * 1024
"""Read and not yet written; beyond it the pipes are left alone, and the job waits in `write`."""
PIPE_BYTES: Final = 256 * 1024
"""Of a job's standard output; Linux lets a user without root have 64 MiB of pipes in all."""
READS_AT_ONCE: Final = 8
"""Before other work gets its turn."""
BREATH_S: Final = 0.002
"""Between two short reads of a stream: a program that writes line by line makes few large frames, not many small."""
OWN_LOG_BYTES: Final = 1024 * 1024
OWN_LOG_DELAY_S: Final = 0.1
"""Until a sentence in it is on disk."""
RESERVE_BYTES: Final = PENDING_BYTES + 256 * 1024
"""Held on disk while a job runs: what it printed last and its result are kept also when it has filled the disk."""
LAST_WORDS_S: Final = 1.0
"""A runner that leaves waits for them no longer, should the disk be full."""
RETRY_S: Final = 1.0
"""Between two tries to write to a disk that is full."""
ORDER_PATIENCE_S: Final = 10.0
"""How long an order waits for a full disk before the server is told to come back later."""

# What is taken in.
BODY_BYTES: Final = 4 * 1024 * 1024
SCRIPT_BYTES: Final = 128 * 1024 - 1
"""Linux takes no longer argument (MAX_ARG_STRLEN)."""
CODE_BYTES: Final = 512 * 1024 * 1024
"""Of an archive as it is sent."""
CODE_UNPACKED_BYTES: Final = 4 * 1024**3
CODE_FILES: Final = 200_000
MOST_LIVE_READERS: Final = 32
SEND_S: Final = 60.0
"""A live reader that takes nothing for so long is let go."""
MESSAGE_CHARS: Final = 500
"""Of a result; it also travels in a header."""
