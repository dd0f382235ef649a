"""Stoker runs people's workloads on machines and never loses one."""
