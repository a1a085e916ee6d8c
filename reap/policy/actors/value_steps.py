"""Steps of torchrl's modules that choose by values: `QValueModule`, and `EGreedyModule`, which sometimes draws at random."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from reap.policy.actors.registers import Registers, Step, UnwrapError
from reap.policy.actors.torchrls_own import is_composite, own_name

Inputs = Callable[[Registers], Sequence[Any]]
Maker = Callable[[Any, Inputs, tuple[int, ...]], Step]
"""Makes the step of a module, from what reads its inputs and the shape of the batch."""


def value_step(module: Any) -> Maker | None:
    """The function that makes the step of a module of these torchrl classes; None for any other module."""
    name = own_name(module)
    return None if name is None else MAKERS.get(name)


def _q_value_step(module: Any, inputs: Inputs, _batch_shape: tuple[int, ...]) -> Step:
    """The action with the highest value, all values, and the highest value."""
    if module.action_mask_key is not None or getattr(module, "strict_shape", True) == "auto":
        raise UnwrapError(f"{type(module).__name__} has a mask, or changes shapes")
    space = module.action_space
    choose = module.action_func_mapping[space]
    chosen = module.action_value_func_mapping.get(space, module._default_action_value)
    count = len(module.out_keys)

    def step(registers: Registers) -> None:
        (values,) = inputs(registers)
        action = choose(values)
        registers.extend((action, values, chosen(values, action))[:count])

    return step


def _greedy_step(module: Any, inputs: Inputs, batch_shape: tuple[int, ...]) -> Step:
    """The action, or with a probability of `eps` one that the spec draws, for each row."""
    key = module.action_key
    if module.action_mask_key is not None or not isinstance(key, str) or module.eps.device.type != "cpu":
        raise UnwrapError(f"{type(module).__name__} has a mask, a nested action, or is on {module.eps.device}")
    given = module.spec
    if given is None:
        raise UnwrapError(f"{type(module).__name__} has no spec")
    names = vars(sys.modules[type(module).__module__])
    exploration, exploring = names["exploration_type"], (names["ExplorationType"].RANDOM, None)
    has_keys = is_composite(given)

    def step(registers: Registers) -> None:
        (action,) = inputs(registers)
        if exploration() in exploring:
            draws = torch.rand(batch_shape) < module.eps
            spec = given[key] if has_keys else given
            if spec.shape != action.shape:
                spec = spec.expand(action.shape)
            draws = draws.reshape((*batch_shape, *[1] * (action.ndim - len(batch_shape))))
            action = torch.where(draws, spec.rand(), action)
        registers.append(action)

    return step


MAKERS: dict[str, Maker] = {"actors.QValueModule": _q_value_step, "exploration.EGreedyModule": _greedy_step}
