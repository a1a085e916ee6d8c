"""The import path of schedulers of a sampler's parameters that torchrl users know."""

from typing import Any

from reap.data.schedulers import (
    LambdaScheduler,
    LinearScheduler,
    ParameterScheduler,
    SchedulerList,
    StepScheduler,
)
from reap.names import missing_name

__all__ = [
    "LambdaScheduler",
    "LinearScheduler",
    "ParameterScheduler",
    "SchedulerList",
    "StepScheduler",
]


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
