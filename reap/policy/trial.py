"""`Trial`: one call of a policy at construction, for comparison with another way to call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from reap.keys import Key
from reap.policy.base import Outputs
from reap.policy.contents.held import Held
from reap.policy.probe import untouched
from reap.recording.buffers import Stage


class Trial:
    """The result of one call, and the random state after it; generators, parameters, buffers and the stage are restored.

    Args:
        call: calls the policy on the stage.
        held: the contents of the policy.
        stage: its inputs, which a policy may change in place.

    Attributes:
        outputs: copies of the results.
        enables_grad: the call computed a tensor that requires a gradient, although gradients were disabled outside.
    """

    def __init__(self, call: Callable[[], Outputs], held: Held, stage: Stage) -> None:
        before = {key: tensor.clone() for key, tensor in stage.tensors.items()}
        watch = _GradWatch()
        with untouched(held):
            with watch:
                found = call()
            self.outputs: dict[Key, Any] = {key: _copy(value) for key, value in found.items()}
            self._random = _random_states()
            for key, value in before.items():
                stage.tensors[key].copy_(value)
        self.enables_grad = watch.has_seen_grad

    def agrees(self, other: Trial) -> bool:
        """Whether the outputs, all of which must be tensors, and the random states have the same bits."""
        mine, theirs = self.outputs, other.outputs
        if mine.keys() != theirs.keys() or not all(_same_bits(mine[key], theirs[key]) for key in mine):
            return False
        return all(map(torch.equal, self._random, other._random))


class _GradWatch(TorchFunctionMode):
    """Notes whether any torch function in the body returned a tensor that requires a gradient.

    Enabled gradients alone prove nothing: `torch.distributions` enables them for its lazy properties.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_seen_grad = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled():
            values = result if isinstance(result, tuple | list) else (result,)
            self.has_seen_grad = self.has_seen_grad or any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
        return result


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _random_states() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    return states + torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else states


def _same_bits(a: Any, b: Any) -> bool:
    if type(a) is not torch.Tensor or type(b) is not torch.Tensor or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, for which NaN equals itself and 0.0 differs from -0.0."""
    return tensor.contiguous().view(-1).view(torch.uint8)
