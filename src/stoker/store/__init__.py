"""PostgreSQL and the log files: the only room that writes them."""
