"""Stoker on a real NVIDIA GPU: `make gpu`. Not part of `make test`, since a machine either has one or does not."""
