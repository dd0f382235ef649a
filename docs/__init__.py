"""Pages for people, and the programs that print those which are generated."""
