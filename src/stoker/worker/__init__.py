"""The agent that claims swarm tasks. Empty until the swarm."""
