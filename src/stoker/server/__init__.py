"""The server process. Empty until the API."""
