"""The agent on a host. Empty until the first runtime."""
