"""`StepPlan`: the computation of a policy of TensorDict modules, as a list of steps over registers.

    ProbabilisticActor                                     registers
    ├── TensorDictModule          observation → logits     0  observation, from the stage
    └── SafeProbabilisticModule   logits → action, ...     1  logits = network(0)
                                                           2  action, 3  action_log_prob = draw(distribution(1))

Which register a key is in is known once the plan is made, so that a call looks up no keys and builds no TensorDict. The
networks are called as modules, so their own hooks run. The TensorDict modules around them are not called at all, and are
unwrapped only if all of their behaviour is known: exactly these classes, no hooks on them, no options that change the
outputs. `UnwrapError` gives the reason.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from tensordict.nn import (
    CompositeDistribution,
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    skip_existing,
)
from torch import nn

from reap.errors import SpecMismatch
from reap.keys import Key, as_key, plain
from reap.policy.actors.module_changes import HOOKS, ModuleChanges
from reap.policy.actors.registers import Plan, Registers, Step, UnwrapError
from reap.policy.actors.torchrls_own import own_name
from reap.policy.actors.value_steps import value_step
from reap.recording.buffers import Stage

NAMES: Mapping[type, frozenset[str]] = {
    TensorDictModule: frozenset({"common.SafeModule", "actors.Actor", "actors.ValueOperator"}),
    TensorDictSequential: frozenset(
        {
            "sequence.SafeSequential",
            "actors.QValueActor",
            "actors.ActorValueOperator",
            "actors.ActorCriticOperator",
            "actors.ActorCriticWrapper",
        }
    ),
    ProbabilisticTensorDictModule: frozenset({"probabilistic.SafeProbabilisticModule"}),
    ProbabilisticTensorDictSequential: frozenset(
        {"probabilistic.SafeProbabilisticTensorDictSequential", "actors.ProbabilisticActor"}
    ),
}
"""The known classes of tensordict, and equivalent ones of torchrl, found without importing torchrl."""

CHANGING: Mapping[type, tuple[str, ...]] = {
    TensorDictModule: ("_kwargs", "method", "method_kwargs", "_get_kwargs"),
    TensorDictSequential: ("partial_tolerant", "_select_before_return"),
    ProbabilisticTensorDictModule: ("num_samples", "cache_dist", "_generator", "_generator_key"),
    ProbabilisticTensorDictSequential: ("partial_tolerant", "_select_before_return"),
}
"""Attributes that change how a class of modules computes, unless they are empty."""

NO_SHAPE = torch.Size(())


class StepPlan(Plan):
    """The steps of a policy of TensorDict modules.

    Args:
        policy: the policy.
        stage: the tensors that it is given.
        interaction: how probabilistic modules choose; None for the default of each.

    Raises:
        UnwrapError: the policy cannot be unwrapped.
    """

    def __init__(self, policy: Any, stage: Stage, interaction: InteractionType | None) -> None:
        if skip_existing():
            raise UnwrapError("set_skip_existing is active")
        if nn.modules.module._has_any_global_hook():  # pyright: ignore[reportPrivateUsage]
            raise UnwrapError("hooks for all modules are registered")
        parts: list[Any] = []
        leaves = list(_leaves(policy, interaction, parts))
        self.is_changed = ModuleChanges(parts).found
        self.reads = _inputs(leaves, frozenset(stage.fields))
        self._batch_shape = tuple(stage.batch_shape)
        self.places = {key: place for place, key in enumerate(self.reads)}
        self._size = len(self.reads)
        self.steps = [self._step(leaf, taken) for leaf, taken in leaves]

    def _step(self, leaf: Any, interaction: InteractionType | None) -> Step:
        inputs = getter([self.places[as_key(key)] for key in leaf.in_keys])
        if make := value_step(leaf):
            step = make(leaf, inputs, self._batch_shape)
        elif _kind(leaf) is TensorDictModule:
            step = _module_step(leaf, inputs)
        else:
            step = _distribution_step(leaf, inputs, interaction)
        self._place(_written(leaf))
        return step

    def _place(self, keys: Iterable[Key | None]) -> None:
        for key in keys:
            if key is not None:
                self.places[key] = self._size
            self._size += 1
        clashes = [key for key in self.places if any(key[:n] in self.places for n in range(1, len(key)))]
        if clashes:
            raise UnwrapError(f"{clashes} are under keys that hold tensors")


def _kind(module: Any) -> type | None:
    """The tensordict class with the behavior of this module; None if it is not known."""
    cls = type(module)
    if cls in NAMES:
        return cls
    name = own_name(module)
    kind = next((kind for kind, names in NAMES.items() if name in names), None)
    if kind is None or cls.forward is kind.forward or _draws_jointly(cls):
        return kind
    return None


def _draws_jointly(cls: type) -> bool:
    """Whether it is torchrl's class that gets sample and log-probability from one call of the distribution."""
    return cls.__name__ == "SafeProbabilisticModule" and "sample_and_log_prob" in vars(sys.modules[cls.__module__])


def _leaves(module: Any, interaction: InteractionType | None, parts: list[Any]) -> Iterator[tuple[Any, InteractionType | None]]:
    """The modules that compute something, in order, and how each uses its distribution."""
    if value_step(module):
        _refuse_changes(module, type(module))
        parts.append(module)
        yield module, interaction
        return
    kind = _kind(module)
    if kind is None:
        raise UnwrapError(f"{type(module).__name__} is no class that is known")
    _refuse_changes(module, kind)
    parts.append(module)
    if kind in {TensorDictModule, ProbabilisticTensorDictModule}:
        yield module, interaction
        return
    children = _children(module)
    if kind is ProbabilisticTensorDictSequential and not module.return_composite:
        yield from _leaves(vars(module)["_det_part"], interaction or _default(children), parts)
        children = children[-1:]
    for child in children:
        yield from _leaves(child, interaction, parts)


def _refuse_changes(module: Any, kind: type) -> None:
    own = vars(module)
    name = type(module).__name__
    found = [attribute for attribute in (*HOOKS, "_compiled_call_impl", *CHANGING.get(kind, ())) if own.get(attribute)]
    found += [attribute for attribute in own if inspect.isfunction(getattr(type(module), attribute, None))]
    if found:
        raise UnwrapError(f"{name} has {', '.join(found)}")
    inplace = own.get("inplace", True)
    if inplace is not True and (inplace is not None or kind is TensorDictModule):
        raise UnwrapError(f"{name} has inplace={inplace!r}")
    if own.get("num_samples") is not None:
        raise UnwrapError(f"{name} has num_samples={own['num_samples']}")
    if not own.get("_requires_sample", True) or own.get("_out_keys_apparent") not in (None, own["_out_keys"]):
        raise UnwrapError(f"{name} does not write all of its out_keys")


def _children(sequence: Any) -> list[Any]:
    inner = sequence.module
    if isinstance(inner, nn.ModuleList):
        return list(inner)
    if isinstance(inner, nn.ModuleDict):
        return list(inner.children())
    raise UnwrapError(f"{type(sequence).__name__} holds a {type(inner).__name__}")


def _default(children: Sequence[Any]) -> InteractionType | None:
    """The default interaction of tensordict for all modules but the last."""
    defaults = (getattr(child, "default_interaction_type", None) for child in reversed(children))
    return next((default for default in defaults if default is not None), None)


def _inputs(leaves: Iterable[tuple[Any, InteractionType | None]], known: frozenset[Key]) -> list[Key]:
    """The keys that are read before they are written."""
    reads: dict[Key, None] = {}
    written: set[Key | None] = set()
    for leaf, _ in leaves:
        wanted = [key for key in map(as_key, leaf.in_keys) if key not in written]
        missing = [plain(key) for key in wanted if key not in known]
        if missing:
            raise UnwrapError(f"{type(leaf).__name__} reads {missing}, which may be missing")
        reads.update(dict.fromkeys(wanted))
        written.update(_written(leaf))
    return list(reads)


def _written(leaf: Any) -> list[Key | None]:
    """Keys of the values that a module's step appends; None: the value is dropped."""
    if value_step(leaf) or _kind(leaf) is TensorDictModule:
        return [None if key == "_" else as_key(key) for key in leaf.out_keys]
    samples = [as_key(key) for key in leaf.dist_sample_keys]
    if len(samples) != 1:
        raise UnwrapError(f"{type(leaf).__name__} writes {len(samples)} samples")
    return [*samples, as_key(leaf.log_prob_key)] if leaf.return_log_prob else [*samples]


def getter(places: Sequence[int]) -> Callable[[Registers], Sequence[Any]]:
    """The values in these registers, always as a sequence."""
    if not places:
        raise UnwrapError("a module reads nothing")
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


def _module_step(leaf: Any, inputs: Callable[[Registers], Sequence[Any]]) -> Step:
    call, keys = leaf.module, tuple(leaf.out_keys)
    count = len(keys)

    def one(registers: Registers) -> None:
        result = call(*inputs(registers))
        registers.append(result if isinstance(result, torch.Tensor) else _values(result, keys)[0])

    def several(registers: Registers) -> None:
        result = call(*inputs(registers))
        registers.extend(result if type(result) is tuple and len(result) == count else _values(result, keys))

    return one if count == 1 else several


def _values(result: Any, keys: Sequence[Any]) -> Sequence[Any]:
    """The values for these keys in what a module returned, if that is not plainly one tensor or a tuple."""
    if isinstance(result, dict) and all(key in result for key in keys):
        return [result[key] for key in keys]
    values = result if isinstance(result, tuple) else (result,)
    if len(values) != len(keys):
        raise SpecMismatch(f"policy: expected {len(keys)} outputs for {list(keys)}, found {len(values)}")
    return values


def _distribution_step(leaf: Any, inputs: Callable[[Registers], Sequence[Any]], interaction: InteractionType | None) -> Step:
    build, options = leaf.distribution_class, leaf.distribution_kwargs
    if build is CompositeDistribution or type(options) is not dict:
        raise UnwrapError(f"{type(leaf).__name__} has distribution {build} with {type(options).__name__}")
    names = tuple(key if isinstance(key, str) else key[-1] for key in leaf.dist_keys)
    chosen = interaction or leaf.default_interaction_type
    draw = _draw if chosen is InteractionType.RANDOM else partial(leaf._dist_sample, interaction_type=chosen)

    def sample(registers: Registers) -> None:
        value = draw(build(**dict(zip(names, inputs(registers), strict=True)), **options))
        registers.append(value)

    def sample_and_score(registers: Registers) -> None:
        distribution = build(**dict(zip(names, inputs(registers), strict=True)), **options)
        value = draw(distribution)
        if not isinstance(value, torch.Tensor):
            raise SpecMismatch(f"policy: expected a tensor from {build}, found a sample of {type(value).__name__}")
        registers.append(value)
        registers.append(distribution.log_prob(value))

    def sample_with_score(registers: Registers) -> None:
        registers.extend(_draw_scored(build(**dict(zip(names, inputs(registers), strict=True)), **options)))

    if not leaf.return_log_prob:
        return sample
    jointly = _draws_jointly(type(leaf)) and chosen is InteractionType.RANDOM
    return sample_with_score if jointly else sample_and_score


def _draw(distribution: Any) -> Any:
    return distribution.rsample(NO_SHAPE) if distribution.has_rsample else distribution.sample(NO_SHAPE)


def _draw_scored(distribution: Any) -> Sequence[Any]:
    """A sample and its log-probability, by the distribution's one method for both where it has one."""
    name = "rsample_and_log_prob" if distribution.has_rsample else "sample_and_log_prob"
    both = getattr(type(distribution), name, None)
    if both is not None:
        return both(distribution, NO_SHAPE)
    value = _draw(distribution)
    if not isinstance(value, torch.Tensor):
        raise SpecMismatch(f"policy: expected a tensor, found a sample of {type(value).__name__}")
    return value, distribution.log_prob(value)
