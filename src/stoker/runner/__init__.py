"""The agent beside the process: runs one job's commands, keeps their output on disk and serves it."""
