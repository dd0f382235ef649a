"""The agents as one tree of files that needs nothing of the host it runs on, made from what is installed here."""
