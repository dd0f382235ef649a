"""Everything is bounded: the named maxima, in one place. Over one of them is a clear error, never a slow death."""

# What a person may ask for.
MOST_JOBS_IN_A_RUN = 10_000
MOST_NODES = 1_000
"""Of one replica: all of them are stepped together."""
MOST_TASKS_IN_A_MANAGED_JOB = 1_000
MOST_CRON_LINES = 32
MOST_CRON_CHARS = 200

MOST_FLEETS_OF_A_RUN = 100
MOST_VOLUMES_OF_A_RUN = 32
MOST_FLEET_NODES = 10_000
MOST_SSH_HOSTS = 1_000
"""Named in one fleet."""
MOST_KEYS = 100
MOST_KEY_CHARS = 32_768
"""Of a private key."""
MOST_TAGS = 50
MOST_TAG_CHARS = 256
MOST_RUNS_AT_ONCE = 1_000
"""In one request that submits runs."""
MOST_COMMANDS = 1_000
MOST_COMMAND_CHARS = 65_536
MOST_ENV = 1_000
MOST_ENV_CHARS = 120_000
"""Of one variable with its name: Linux takes no longer one, nor a longer argument of a program."""
MOST_PORTS = 100
MOST_PATH_CHARS = 4_096
MOST_DURATION_S = 10 * 365 * 24 * 3600.0
LONGEST_GRACE_S = 7 * 24 * 3600.0
"""Between asking a program to stop and killing it: agents take no longer one."""

# The swarm.
MOST_TASKS_IN_A_REQUEST = 10_000
"""As one JSON document; a larger graph is sent line by line."""
MOST_TASKS_IN_A_GRAPH = 1_000_000
MOST_EDGES_IN_A_GRAPH = 2_000_000
MOST_GRAPH_BYTES = 1024**3
MOST_EDGES_OF_A_TASK = 100_000
MOST_ARGUMENTS = 10_000
MOST_LABELS = 20
MOST_GPUS = 64
"""Of one worker."""
MOST_CLAIMED = 512
"""By one request."""
MOST_REPORTED = 2_000
MOST_HELD = 20_000
MOST_INLINE_CHARS = 24_000
"""Of an output that travels with the report of its end, in base64."""
MOST_RESULT_CHARS = 65_536
MOST_OUTPUT_BYTES = 1024**3
"""Of one stream of one attempt that is kept; what is beyond is dropped, and its end says so."""
MOST_SAMPLES = 1_000
"""Of one series of one attempt."""
LONGEST_LEASE_S = 3600.0

# What a configuration file may be.
MOST_FILE_BYTES = 512 * 1024
MOST_FILE_NODES = 20_000
"""With every alias counted as what it stands for."""
MOST_FILE_DEPTH = 20

# Requests.
MOST_BODY_BYTES = 4 * 1024 * 1024
MOST_ITEMS = 500
"""On one page of a list."""
MOST_JOBS_SHOWN = 100
"""With their run; the others are a list of their own."""
LONGEST_WAIT_S = 60.0
"""Of a long poll; who wants to wait longer asks again."""
MOST_STREAMS = 2_000
"""Logs and events that one replica sends at the same time."""

# The committer.
MOST_CHANGES = 256
"""In one batch."""
MOST_WAITING = 50_000
"""Changes in the queue; more are refused, and the caller has to slow down."""
GIVE_UP_S = 20.0
"""How long changes wait for a database that is away: less than clients wait for an answer, so that they hear why."""
WHOLE = 64
"""A run of at most so many jobs is always loaded whole: one commit then does what an order means."""
SWEPT = 500
"""How many jobs an order to a larger run reaches in one commit: ten thousand are ended in twenty."""
PAGE = 256
"""How many rows a loop looks at in one pass."""

# Errands.
MOST_ERRANDS = 512
"""Under way at once in one replica."""
ADOPTED_AT_ONCE = 500
PERFORMANCE_S = 600.0
"""How long one performance may take; a call that hangs must not keep its place for ever."""
LONGEST_DELAY_S = 30.0
"""Between two tries of an errand that fails."""

# What is kept.
JOURNAL_KEPT_S = 90 * 24 * 3600.0
KEYS_KEPT_S = 24 * 3600.0
"""How long a request with an idempotency key may be repeated."""
FORGOTTEN_AT_ONCE = 5_000

# Placement.
FEW_GANGS = 32
MANY_GANGS = 512
MOST_GANGS = 5_000
"""Looked at in one pass: the most urgent, then the oldest."""

# Silence and leaving.
LAUNCH_S = 900.0
"""How long a provider may take to say yes or no to a launch, and how long a user's host may take to be reached. Longer
than a performance, so that a call that hangs is made once more before the machine is given up."""
PROVIDER_SILENCE_S = 1200.0
"""How long a provider's machine may be silent; a host that a user owns may be silent without end."""
LISTEN_S = 8.0
"""How long a server that was away listens before it says that a job ran too long: longer than it waits between two
tries to reach a host."""
UNREGISTER_S = 60.0
"""How long a job that ends waits until traffic has left it; a gateway that is gone must not keep it running."""
LEAVING_GRACE_S = 120.0
"""How long jobs may take to stop when their machine is sent away."""

# Logs.
LOG_QUOTA_BYTES = 10 * 1024**3
"""Of one job; the runner ends a job that writes more."""
MOST_TAIL_LINES = 100_000
"""That may be asked for from the end of a log; who wants more reads it by offset."""
MOST_TAIL_BYTES = 32 * 1024 * 1024
"""How far back those lines are looked for: of longer ones fewer are shown, and of an endless one the end."""
TAIL_MEMORY_BYTES = 1024 * 1024
"""How far before the last lines is looked whether the other stream was in the middle of a line; if it was silent for
longer, what it says next begins one."""
