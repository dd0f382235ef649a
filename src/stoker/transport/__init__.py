"""Ways to reach an agent. Empty until there are agents."""
