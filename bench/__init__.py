"""Measurements on this machine, each beside a peer or a physical limit in the same run."""
