"""Everything that goes wrong here, by name: a campaign says which of them it visited."""

FAULTS = frozenset(
    {
        # The network between replicas and agents.
        "message lost", "message doubled", "message delayed", "answer lost", "answer delayed", "news lost",
        "news doubled", "news delayed", "errand delayed", "hint lost", "order refused by its fence",
        "performer gave up before acting",
        # Replicas and their database.
        "replica killed", "replica killed before the commit", "replica killed after the commit",
        "replica frozen", "connection lost between statements", "connection lost in the middle of a transaction",
        "connection lost before the commit", "connection lost after the commit", "database away",
        "database away for long", "replica without its database",
        # Hosts, programs and what holds them.
        "host cut off", "host frozen", "host ill", "agent stopped a job by its own clock", "hook failed", "undo failed",
        "program ignores SIGTERM", "agent fails under a running job", "machine goes with the program",
        "gateway away", "gateway never answers", "volume will not detach", "volume slow to be made",
        "volume refused", "volume broken as it is made", "provider of volumes away",
        "task ended by hand",
        "program leaves when it is warned", "job idle for too long",
        # The provider.
        "provider never answers", "provider refuses", "provider creates and forgets", "provider refuses and creates",
        "machine never comes up", "provider is slow to destroy", "machine preempted", "orphan destroyed",
        "launch is impossible",
        # The swarm.
        "worker killed", "killed worker removed by hand", "worker frozen", "worker cut off", "claim answer lost",
        "report lost", "report doubled",
    }
)  # fmt: skip
