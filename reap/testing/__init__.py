"""Small envs and policies with predictable data, and checks of envs and collectors, for tests of code built on them."""

from typing import Any

from reap.names import missing_name
from reap.testing.checks import check_env
from reap.testing.collector_checks import check_collector
from reap.testing.envs import Count, CountTL, Crash, DictCount, DiscreteCount, Id, KeepActions, Masked, Noise, Reuse
from reap.testing.policies import BN, Const, DictPolicy, KeepInputs, MLPPolicy
from reap.testing.rows import IdRows

__all__ = [
    "BN",
    "Const",
    "Count",
    "CountTL",
    "Crash",
    "DictCount",
    "DictPolicy",
    "DiscreteCount",
    "Id",
    "IdRows",
    "KeepActions",
    "KeepInputs",
    "MLPPolicy",
    "Masked",
    "Noise",
    "Reuse",
    "check_collector",
    "check_env",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
