"""Turns events into commits, and wishes into events."""
