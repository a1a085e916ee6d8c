"""Prepares a policy to act: on its own device or another one, unchanged, compiled, or as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import CudaGraphModule

from reap.errors import OptionError
from reap.policy.contents.held import Held, held_by
from reap.policy.contents.private import private_copy

Arguments = bool | Mapping[str, Any]


@dataclass(frozen=True)
class Placement:
    """A policy ready to act.

    Attributes:
        held: the policy and its contents: those given, or copies on another device.
        source: the policy whose weights it copies, if it is a copy.
        called: called instead of the policy; None for the policy itself.
        device: the device of a TensorDict for it; None if unknown, or if it is set when inputs are copied.
    """

    held: Held
    source: Callable[..., Any] | None = None
    called: Callable[..., Any] | None = None
    device: torch.device | None = None

    @property
    def policy(self) -> Callable[..., Any]:
        """The policy."""
        return self.held.policy


def place(policy: Any, device: torch.device | None, *, compiled: Arguments, as_graph: Arguments) -> Placement:
    """Put a policy on its device, and compile it if requested.

    Args:
        policy: module or function, or the result of `held_by` for one.
        device: where it runs; None leaves it where it is. A policy whose weights are already there is used unchanged.
        compiled: `torch.compile` it; a mapping gives the arguments.
        as_graph: capture it as a CUDA graph; a mapping gives the arguments of `CudaGraphModule`.

    Raises:
        OptionError: a CUDA graph without a CUDA device; weights without a name.
    """
    source, held = None, held_by(policy)
    if device is not None and not held.is_on(device):
        source, held = held.policy, private_copy(policy, device)
    called = held.policy
    if compiled is not False:
        called = torch.compile(called, **_arguments(compiled))
    if as_graph is not False:
        if device is None or device.type != "cuda":
            raise OptionError(f"cudagraph_policy: expected policy_device to be a CUDA device, got {device}")
        called = CudaGraphModule(called, **_arguments(as_graph))
    if device is not None and device.type != "cpu":
        called, device = _Staged(called, device), None
    return Placement(held, source, None if called is held.policy else called, device)


def _arguments(given: Arguments) -> dict[str, Any]:
    return dict(given) if isinstance(given, Mapping) else {}


class _Staged:
    """Calls a policy with its inputs copied to the device; the outputs are copied back where they are written."""

    def __init__(self, policy: Callable[..., Any], device: torch.device) -> None:
        self._policy, self._device = policy, device

    def __call__(self, *inputs: Any) -> Any:
        return self._policy(*[_moved(value, self._device) for value in inputs])


def _moved(value: Any, device: torch.device) -> Any:
    """Move a tensor, TensorDict or list of tensors to the device; other objects are unchanged."""
    if isinstance(value, torch.Tensor | TensorDictBase):
        return value.to(device, non_blocking=True)
    return [_moved(item, device) for item in value] if isinstance(value, list) else value
