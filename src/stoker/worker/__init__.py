"""The agent that claims swarm tasks and runs them: `stoker worker`."""
