"""`DrawPlan`: the steps of torchrl's `RandomPolicy`, one draw per spec.

    RandomPolicy(Composite)                          registers
    ├── "action"            spec.rand()              0  action
    └── ("agents", "move")  spec.rand()              1  move

The policy itself draws the same numbers in the same order, but puts them into new TensorDicts and copies these into its
argument, which takes several times as long as drawing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import is_
from typing import Any

import torch

from reap.keys import Key, as_key
from reap.policy.actors.registers import Plan, Registers, Step, UnwrapError
from reap.policy.actors.torchrls_own import composite, is_composite, own_name

NO_SHAPE = torch.Size(())


def is_random_policy(policy: Any) -> bool:
    """Whether it is exactly torchrl's `RandomPolicy`, not a subclass."""
    return type(policy).__qualname__ == "RandomPolicy" and own_name(policy) is not None


class DrawPlan(Plan):
    """The steps of a `RandomPolicy`: a draw for each spec; it reads nothing.

    Args:
        policy: the policy, with its specs.

    Raises:
        UnwrapError: its specs do not make a TensorDict of tensors in host memory.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._specs = self._now()
        leaves = list(_leaves(policy.action_spec, () if self._is_composite else as_key(policy.action_key)))
        self.reads = []
        self.places = {key: place for place, (key, _) in enumerate(leaves)}
        if not leaves or len(self.places) < len(leaves):
            raise UnwrapError(f"expected specs under keys of their own, found {[key for key, _ in leaves]}")
        self.steps = [_draw_step(spec, self._is_composite) for _, spec in leaves]

    @property
    def _is_composite(self) -> bool:
        return is_composite(self._policy.action_spec)

    def _now(self) -> list[Any]:
        return [*vars(self._policy).values(), *_nodes(self._policy.action_spec)]

    def is_changed(self) -> bool:
        """Whether the policy's spec, or a spec nested in it, was replaced."""
        now = self._now()
        return len(now) != len(self._specs) or not all(map(is_, now, self._specs))


def _draw_step(spec: Any, is_part: bool) -> Step:
    draw = partial(spec.rand, NO_SHAPE) if is_part else spec.rand

    def step(registers: Registers) -> None:
        registers.append(draw())

    return step


def _nodes(spec: Any) -> Iterator[Any]:
    """A spec and all that it is composed of."""
    yield spec
    if is_composite(spec):
        for part in spec.values():
            yield from _nodes(part)


def _leaves(spec: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    """The specs of tensors, in the order in which they are drawn."""
    if not is_composite(spec):
        if not isinstance(getattr(spec, "device", None), torch.device) or spec.device.type != "cpu":
            raise UnwrapError(f"{key} is no tensor in the memory of the host")
        yield key, spec
        return
    if type(spec).rand is not composite().rand or spec.data_cls is not None:
        raise UnwrapError(f"{type(spec).__name__} draws in a way of its own")
    for name, part in spec.items():
        if part is not None:
            yield from _leaves(part, (*key, name))
