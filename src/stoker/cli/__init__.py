"""Commands for people. Empty until the server."""
