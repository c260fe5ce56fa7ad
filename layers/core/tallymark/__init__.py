"""Tallymark: exact counts of what people do to things."""

__version__ = "0.1.0"
