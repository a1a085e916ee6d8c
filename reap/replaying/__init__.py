"""Replay: runs recorded episodes again, compares each step with the record, and renders them."""

from __future__ import annotations

from reap.recording.records import EpisodeRecord
from reap.replaying.files import EpisodeFolder
from reap.replaying.rerun import Departure, Replay, replay

__all__ = ["Departure", "EpisodeFolder", "EpisodeRecord", "Replay", "replay"]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
