"""One call of the policy at construction: what it writes, whether that fits, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from reap.buffers import Stage
from reap.errors import SpecMismatch
from reap.keys import Key, plain
from reap.layout import Field
from reap.policy.base import Outputs
from reap.specs import Bounded, Composite, Spec


@contextmanager
def untouched(module: nn.Module | None) -> Generator[None]:
    """Run the body under `no_grad`, then restore generators, parameters and buffers."""
    random_state = torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    kept = _values(module)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_rng_state(random_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)


def _values(module: nn.Module | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if module is None:
        return []
    tensors = [*module.parameters(), *module.buffers()]
    return [(tensor, tensor.detach().clone()) for tensor in tensors if not nn.parameter.is_lazy(tensor)]


def output_fields(outputs: Outputs, actions: Composite, stage: Stage, where: str) -> dict[Key, Field]:
    """Shape and dtype of one row's value of each output, after a check against the env's action specs.

    Raises:
        SpecMismatch: an action is missing or does not fit, an output lacks the batch dimensions or is no tensor.
    """
    specs = dict(actions.leaves())
    missing = [plain(key) for key in specs if key not in outputs]
    if missing:
        found = [plain(key) for key in outputs]
        raise SpecMismatch(f"{where}: expected the action under {missing}, found outputs {found}; name it in out_keys")
    fields: dict[Key, Field] = {}
    for key, value in outputs.items():
        tensor = _tensor(value, key, where)
        if key in specs:
            check_action(tensor, specs[key], key, where)
        fields[key] = _field(tensor, stage.batch_shape, key, where)
    return fields


def _tensor(value: Any, key: Key, where: str) -> torch.Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecMismatch(f"{where}: output {plain(key)!r}: expected a tensor, found {type(value).__name__}") from error


def _field(tensor: torch.Tensor, batch_shape: tuple[int, ...], key: Key, where: str) -> Field:
    lead = len(batch_shape)
    if tuple(tensor.shape[:lead]) != batch_shape:
        raise SpecMismatch(
            f"{where}: output {plain(key)!r}: expected a shape that starts with the env's batch size {batch_shape}, "
            f"found {tuple(tensor.shape)}"
        )
    return Field(tuple(tensor.shape[lead:]), tensor.dtype)


def check_action(action: torch.Tensor, spec: Spec, key: Key, where: str) -> None:
    """Raise SpecMismatch unless an action fits its spec; bounds of continuous actions are the env's own affair."""
    if isinstance(spec, Bounded) and action.shape == spec.shape and action.dtype == spec.dtype:
        if action.is_floating_point() and bool(action.isnan().any()):
            raise SpecMismatch(f"{where}: {plain(key)!r}: expected numbers, found NaN in the first action")
        return
    spec.validate(action, key=str(plain(key)), where=where)


def run_probe(
    call: Callable[[], Outputs], module: nn.Module | None, actions: Composite, stage: Stage, where: str
) -> Mapping[Key, Field]:
    """Call a policy once and return what it writes; see `untouched` and `output_fields`."""
    with untouched(module):
        return output_fields(call(), actions, stage, where)
