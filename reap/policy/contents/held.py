"""`Held`: all weights that a policy holds, anywhere in it, by name.

The weights are all modules, parameters and buffers that would be pickled with the policy (`reap.workers.visited`). A weight's
name is the shortest path to it (`reap.policy.contents.parts`):

    nn.Module                       net.weight              as in its state_dict()
    agent.act                       net.weight              everything held by the object of a bound method
    lambda observation: agent(...)  agent.net.weight        the variable, then the attribute
    partial(function, agent)        args.0.net.weight
    a list in a module              nets.0.weight
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn

from reap.errors import OptionError
from reap.policy.actors.plain import name_of
from reap.policy.contents.parts import HIDDEN, Step, follow, is_inert, is_plain_object, parts_of
from reap.workers.visited import ATOMS, Visited, is_weight, visit

Steps = tuple[Step, ...]

NOT_THERE = (AttributeError, LookupError, TypeError, ValueError, StopIteration)
"""Errors raised by steps that lead nowhere."""


class Place(NamedTuple):
    """A place in a policy.

    Attributes:
        name: its name, dotted; empty for the policy itself.
        steps: the path to it.
    """

    name: str
    steps: Steps


class Held:
    """The contents of a policy: modules, loose parameters, and the objects that hold them.

    Made by `held_by`. It stores places, not tensors, and looks tensors up on each call.

    Args:
        policy: the policy.
        roots: modules that are not part of another one.
        loose: parameters outside modules.
        objects: objects with attributes that hold them.
        packs_weights: whether there may be more of them in objects of torch's C++ code.

    Attributes:
        policy: the policy.
        packs_weights: as given.
        applied: the number of the last applied change of each attribute.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> list(held_by(lambda observation: net(observation)).tensors())
        ['net.weight', 'net.bias']
        >>> bool(held_by(lambda observation: observation))
        False
    """

    def __init__(
        self,
        policy: Any,
        roots: Iterable[Place],
        loose: Iterable[Place],
        objects: Iterable[Place],
        *,
        packs_weights: bool = False,
    ) -> None:
        self.policy, self.packs_weights = policy, packs_weights
        self.applied: dict[str, int] = {}
        self._roots, self._loose, self._objects = tuple(roots), tuple(loose), tuple(objects)

    def __bool__(self) -> bool:
        """Whether the policy has weights."""
        return bool(self._roots or self._loose)

    def roots(self) -> Iterator[tuple[str, nn.Module]]:
        """The modules that are not part of another one, by name."""
        return ((place.name, follow(self.policy, place.steps)) for place in self._roots)

    def modules(self) -> dict[str, nn.Module]:
        """All modules, by name, each once."""
        found: dict[nn.Module, str] = {}
        for prefix, root in self.roots():
            for name, module in root.named_modules():
                found.setdefault(module, joined(prefix, name))
        return {name: module for module, name in found.items()}

    def objects(self) -> dict[str, Any]:
        """The modules, and the objects with attributes that hold them, by name."""
        found: dict[str, Any] = {}
        for place in self._objects:
            with suppress(*NOT_THERE):  # it was taken away since, like a hook that has done its work
                found[place.name] = follow(self.policy, place.steps)
        return {**found, **self.modules()}

    def loose(self) -> dict[str, torch.Tensor]:
        """Parameters outside modules, by name."""
        return {place.name: follow(self.policy, place.steps) for place in self._loose}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name; one that is in several modules has several names."""
        found: dict[str, torch.Tensor] = {}
        for prefix, root in self.roots():
            found.update(root.named_parameters(prefix, remove_duplicate=False))
            found.update(root.named_buffers(prefix, remove_duplicate=False))
        if self.is_module:
            return {**found, **self.loose()}
        # A skeleton on the device "meta", through which functional calls go, has no values.
        return {**{name: value for name, value in found.items() if not value.is_meta}, **self.loose()}

    @property
    def is_module(self) -> bool:
        """Whether the policy is a module that holds all tensors itself."""
        return not self._loose and len(self._roots) == 1 and not self._roots[0].steps

    def state(self) -> dict[str, Any]:
        """The state that is saved: the modules' `state_dict()`, loose parameters."""
        found: dict[str, Any] = {}
        for prefix, root in self.roots():
            found.update(root.state_dict(prefix=f"{prefix}." if prefix else ""))
        return {**found, **self.loose()}

    def is_on(self, device: torch.device) -> bool:
        """Whether all tensors are on a device."""
        found = self.tensors().values()
        return all(t.device.type == device.type and device.index in (None, t.device.index) for t in found)

    def has_lazy(self) -> bool:
        """Whether any parameters are uninitialised."""
        return any(map(nn.parameter.is_lazy, self.tensors().values()))

    def behind_others(self) -> list[str]:
        """The names of weights that only `super()` finds, since another class has an attribute of the same name."""
        places = (*self._roots, *self._loose)
        return [place.name for place in places if any(step.kind == HIDDEN for step in place.steps)]

    @cached_property
    def main(self) -> Place | None:
        """The one module that has all of the weights; None if there are others."""
        own = [place for place in self._roots if any(True for _ in _tensors_of(follow(self.policy, place.steps)))]
        return own[0] if len(own) == 1 and not self._loose else None

    def of(self, other: Any) -> Held | None:
        """The same places in another policy of this form, or in another module in place of `main`; None for anything else."""
        if other is self.policy:
            return self
        for skipped in ((), *([self.main.steps] if self.main else [])):
            places = (_behind(skipped, own) for own in (self._roots, self._loose, self._objects))
            found = Held(other, *places, packs_weights=self.packs_weights)
            try:
                found.tensors()
            except NOT_THERE:
                continue
            return found
        return None


def _tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _behind(steps: Steps, places: Iterable[Place]) -> list[Place]:
    """The places that these steps lead to, as they are reached from there."""
    return [Place(name, own[len(steps) :]) for name, own in places if own[: len(steps)] == steps]


def held_by(policy: Any) -> Held:
    """The contents of a policy.

    Args:
        policy: a module, a function, or any callable object; None holds nothing. A result of `held_by` is returned unchanged.

    Raises:
        OptionError: it holds a module or a parameter in a place without a name.
    """
    if isinstance(policy, Held):
        return policy
    return Search(policy).held()


def joined(prefix: str, name: str) -> str:
    """Join two parts of a name; either may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


class Search:
    """Searches a policy breadth-first.

    Args:
        policy: the policy.

    Attributes:
        ways: the objects seen, by `id`, each with its parts and the steps to them.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._visited: Visited = visit(policy)
        self._places: dict[int, Place] = {}
        self._covered: set[int] = set()
        self._roots: list[Place] = []
        self._loose: list[Place] = []
        self._objects: list[tuple[Any, Place]] = []
        self.ways: dict[int, tuple[Any, list[tuple[Step, Any]]]] = {}
        if self._visited.weights:
            self._go()

    def held(self) -> Held:
        """The contents that were found.

        Raises:
            OptionError: a module or a parameter has no name, or two have the same.
        """
        for one in self._visited.weights:
            if id(one) not in self._covered:
                raise OptionError(self._unnamed(one))
        names = [place.name for place in (*self._roots, *self._loose)]
        if twice := {name for name in names if names.count(name) > 1}:
            name = twice.pop()
            raise OptionError(f"policy {name_of(self._policy)}: two of its modules have the name {name!r}; rename a variable")
        leading = self.leading() if self._objects else {}
        objects = [place for one, place in self._objects if id(one) in leading]
        return Held(self._policy, self._roots, self._loose, objects, packs_weights=bool(self._visited.packed))

    def leading(self) -> dict[int, list[tuple[Step, Any]]]:
        """By `id`, the objects other than modules that lead to weights: the steps on the way, and where they lead."""
        leads = {key for key, (value, _) in self.ways.items() if is_weight(value)}
        above: dict[int, set[int]] = {}
        for key, (_, parts) in self.ways.items():
            for _, part in parts:
                above.setdefault(id(part), set()).add(key)
        waiting = deque(leads)
        while waiting:
            for key in above.get(waiting.popleft(), ()):
                if key not in leads:
                    leads.add(key)
                    waiting.append(key)
        return {
            key: [(step, part) for step, part in self.ways[key][1] if id(part) in leads] for key in leads if key in self.ways
        }

    def _go(self) -> None:
        waiting = deque([(self._policy, Place("", ()))])
        while waiting:
            value, place = waiting.popleft()
            if id(value) in self.ways or type(value) in ATOMS or id(value) not in self._visited.objects:
                continue
            if isinstance(value, torch.Tensor):
                self._note_tensor(value, place)
            elif isinstance(value, nn.Module):
                waiting.extend(self._enter_module(value, place))
            else:
                waiting.extend(self._enter(value, place, parts_of(value, self._visited)))
                if is_plain_object(value):
                    self._objects.append((value, place))

    def _note_tensor(self, value: torch.Tensor, place: Place) -> None:
        self.ways[id(value)] = value, []
        if is_weight(value) and id(value) not in self._covered:
            self._covered.add(id(value))
            self._loose.append(place)

    def _enter(self, value: Any, place: Place, parts: Iterable[tuple[Step, Any]]) -> list[tuple[Any, Place]]:
        found = [(step, part) for step, part in parts if not is_inert(part)]
        self.ways[id(value)] = value, found
        return [(part, Place(joined(place.name, step.label), (*place.steps, step))) for step, part in found]

    def _enter_module(self, root: nn.Module, place: Place) -> list[tuple[Any, Place]]:
        if id(root) not in self._covered:
            self._roots.append(place)
        following: list[tuple[Any, Place]] = []
        for name, module in root.named_modules():
            if id(module) in self.ways:
                continue
            self._covered.update((id(module), *map(id, _tensors_of_one(module))))
            own = Place(joined(place.name, name), (*place.steps, Step("submodule", name, name)) if name else place.steps)
            following.extend(self._enter(module, own, parts_of(module, self._visited)))
        return following

    def _unnamed(self, one: Any) -> str:
        """A description of a place without a name: the innermost named object that leads to it."""
        value, name, seen = self._policy, "", set[int]()
        parts: list[tuple[Step, Any]] = [(Step("", "", ""), value)]
        while found := next(
            (found for found in parts if id(found[1]) not in seen and id(one) in visit(found[1]).objects), None
        ):
            step, value = found
            name = joined(name, step.label)
            seen.add(id(value))
            parts = self.ways[id(value)][1] if id(value) in self.ways else []
        path = f"{name!r} is a {type(value).__name__}, which holds" if name else "it holds"
        return (
            f"policy {name_of(self._policy)}: {path} a {type(one).__name__} that has no name there, by which its weights could "
            "be sent to workers and saved; keep it in an attribute, a variable, a list or a dict with strings as keys"
        )


def _tensors_of_one(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
