"""Evaluation of policies by whole episodes: `evaluate`, in this process or in a separate one during training."""

from reap.evaluation.episodes import Ended, EpisodeLog, Evaluation
from reap.evaluation.evaluator import Evaluator
from reap.evaluation.whole_episodes import evaluate

__all__ = ["Ended", "EpisodeLog", "Evaluation", "Evaluator", "evaluate"]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
