"""The swarm on this machine, beside HyperQueue, Celery and Slurm and beside what the machine itself can do."""
