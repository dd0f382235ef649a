"""Models that cross a process border, and the configurations that people write."""
