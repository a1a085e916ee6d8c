"""Schedulers: change a sampler's parameter step by step, such as the `beta` of a prioritized sampler.

value of step n = clip(function of n and of the initial value, min_value, max_value)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from reap.data.buffers.face import BufferFace
from reap.data.peers import conversion
from reap.data.samplers.base import Sampler
from reap.errors import OptionError, shown
from reap.option_values import positive


class ParameterScheduler:
    """Changes a parameter of a sampler with each `step`.

    Args:
        obj: the sampler, or a buffer that samples with it.
        param_name: the name of the attribute.
        min_value: lower bound; None for no bound.
        max_value: upper bound; None for no bound.

    Raises:
        OptionError: neither a sampler nor a buffer, or it lacks the attribute.
    """

    def __init__(self, obj: Any, param_name: str, min_value: float | None = None, max_value: float | None = None) -> None:
        self.sampler = obj.sampler if isinstance(obj, BufferFace) else obj
        if not isinstance(self.sampler, Sampler):
            raise OptionError(
                f"scheduler: expected a buffer or a sampler of reap.data, got {type(obj).__name__}: {shown(obj):.100}"
                f"{conversion(obj)}"
            )
        if not hasattr(self.sampler, param_name):
            raise OptionError(f"param_name: expected an attribute of {self.sampler!r}, got {param_name!r}")
        self.param_name, self.min_value, self.max_value = param_name, min_value, max_value
        self.initial_val: float = getattr(self.sampler, param_name)
        self.steps = 0
        """Number of steps taken so far."""

    @property
    def value(self) -> float:
        """The current value of the parameter."""
        return getattr(self.sampler, self.param_name)

    def step(self) -> None:
        """Set the parameter to its value for the next step."""
        self.steps += 1
        value = self.value_of(self.steps)
        value = value if self.min_value is None else max(value, self.min_value)
        setattr(self.sampler, self.param_name, value if self.max_value is None else min(value, self.max_value))

    @abstractmethod
    def value_of(self, step: int) -> float:
        """The value for a step (counted from 1) before clipping."""

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and the initial value."""
        return {"steps": self.steps, "initial_val": self.initial_val}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`; the parameter itself is part of the sampler's state."""
        self.steps, self.initial_val = state["steps"], state["initial_val"]


class LambdaScheduler(ParameterScheduler):
    """Sets a parameter to its first value times a function of the number of steps.

    Args:
        obj: the sampler, or a buffer that samples with it.
        param_name: the name of the attribute.
        lambda_fn: returns the factor for a number of steps.
        min_value: lower bound; None for no bound.
        max_value: upper bound; None for no bound.

    Example:
        >>> from reap.data import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.5, beta=0.5)
        >>> LambdaScheduler(sampler, "beta", lambda step: 0.5**step).step()
        >>> sampler.beta
        0.25
    """

    def __init__(
        self,
        obj: Any,
        param_name: str,
        lambda_fn: Callable[[int], float],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def value_of(self, step: int) -> float:
        """The value of a step; see `ParameterScheduler`."""
        return self.initial_val * self.lambda_fn(step)


class LinearScheduler(ParameterScheduler):
    """Moves a parameter from its first value to another in equal steps, and leaves it there.

    Args:
        obj: the sampler, or a buffer that samples with it.
        param_name: the name of the attribute.
        final_value: its value after the last step.
        num_steps: number of steps.

    Example:
        >>> from reap.data import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.5, beta=0.5)
        >>> scheduler, betas = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=2), []
        >>> for _ in range(3):
        ...     scheduler.step()
        ...     betas.append(sampler.beta)
        >>> betas
        [0.75, 1.0, 1.0]
    """

    def __init__(self, obj: Any, param_name: str, final_value: float, num_steps: int) -> None:
        super().__init__(obj, param_name)
        self.final_value, self.num_steps = final_value, positive(num_steps, "num_steps")

    def value_of(self, step: int) -> float:
        """The value of a step; see `ParameterScheduler`."""
        if step >= self.num_steps:
            return self.final_value
        return self.initial_val + step * (self.final_value - self.initial_val) / self.num_steps


class StepScheduler(ParameterScheduler):
    """Multiplies a parameter by a number, or adds one to it, every few steps.

    Args:
        obj: the sampler, or a buffer that samples with it.
        param_name: the name of the attribute.
        gamma: the factor or the summand.
        n_steps: the parameter changes with every `n_steps`-th step.
        mode: `"multiplicative"` or `"additive"`.
        min_value: lower bound; None for no bound.
        max_value: upper bound; None for no bound.

    Example:
        >>> from reap.data import PrioritizedSampler
        >>> sampler = PrioritizedSampler(10, alpha=0.5, beta=0.5)
        >>> scheduler = StepScheduler(sampler, "beta", gamma=0.25, n_steps=2, mode="additive", max_value=0.9)
        >>> for _ in range(4):
        ...     scheduler.step()
        >>> sampler.beta
        0.9
    """

    def __init__(
        self,
        obj: Any,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: Literal["multiplicative", "additive"] = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        if mode not in ("multiplicative", "additive"):
            raise OptionError(f"mode: expected 'multiplicative' or 'additive', got {mode!r}")
        self.gamma, self.n_steps, self.mode = gamma, positive(n_steps, "n_steps"), mode

    def value_of(self, step: int) -> float:
        """The value of a step; see `ParameterScheduler`."""
        if step % self.n_steps:
            return self.value
        return self.value * self.gamma if self.mode == "multiplicative" else self.value + self.gamma


class SchedulerList:
    """Several schedulers that take their steps together.

    Args:
        schedulers: one or several.
    """

    def __init__(self, schedulers: ParameterScheduler | Iterable[ParameterScheduler]) -> None:
        self.schedulers = [schedulers] if isinstance(schedulers, ParameterScheduler) else list(schedulers)
        """The schedulers, in order."""

    def append(self, scheduler: ParameterScheduler) -> None:
        """Add a scheduler."""
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """Take a step of each scheduler."""
        for scheduler in self.schedulers:
            scheduler.step()
