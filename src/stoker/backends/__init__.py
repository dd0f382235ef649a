"""Providers of machines: one folder each, all behind the contract in `base`."""
