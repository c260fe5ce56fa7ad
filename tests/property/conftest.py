"""One profile for all properties: no deadline per example, because the machine may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("tallymark", deadline=None)
settings.load_profile("tallymark")
