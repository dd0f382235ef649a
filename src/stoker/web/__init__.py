"""Pages for people. Empty until the server."""
