"""The agent beside a job. Empty until the first runtime."""
