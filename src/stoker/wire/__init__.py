"""Models that cross a process border. Empty until the server has an API."""
