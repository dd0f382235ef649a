"""The Python client. Empty until the server."""
