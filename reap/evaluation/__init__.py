"""How well a policy does, by whole episodes: `evaluate`, here and now or in a process beside training."""

from reap.evaluation.episodes import Ended, EpisodeLog, Evaluation
from reap.evaluation.evaluator import Evaluator
from reap.evaluation.whole_episodes import evaluate

__all__ = ["Ended", "EpisodeLog", "Evaluation", "Evaluator", "evaluate"]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
