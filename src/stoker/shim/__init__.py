"""The agent on a host: runs shim tasks, and finds them again after it was killed."""
