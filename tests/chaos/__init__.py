"""Chaos on the running stack: `python -m tests.chaos` loads it, breaks its parts, and compares every count."""
