"""`tune`: which collector, how many workers, and how many envs in each, collect the most frames per second on this machine."""

from reap.tuning.search import Tuning, tune
from reap.tuning.setups import Kind, Setup
from reap.tuning.trials import Trial

__all__ = ["Kind", "Setup", "Trial", "Tuning", "tune"]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
