"""A provider that is none: machines to try policies on, which can be slow, full, preempted, lost, or lie."""
