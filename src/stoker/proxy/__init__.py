"""The door of services. Empty until there are services."""
