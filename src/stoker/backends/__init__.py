"""Providers of machines, one folder each. Empty until the first of them."""
