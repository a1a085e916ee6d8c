"""Recurrent state: values that a policy carries from one frame to the next, and their initial values.

A state is a key that the policy reads at the root and writes under `"next"`:

    stage[hidden] --> policy --> slot next[hidden] --carry--> stage[hidden]          initial value where an episode starts

Its form is looked up in this order: `policy.initial_state`, the policy's `make_tensordict_primer()`, the output of a call
without the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn

from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, as_key, plain
from reap.policy.base import Outputs
from reap.recording.buffers import IS_INIT, STEP_COUNT, Stage, after
from reap.recording.layout import Array, Field
from reap.specs import Spec
from reap.specs.faults import layout_text


@dataclass(frozen=True)
class RecurrentState:
    """One row's state: shape, dtype and initial value."""

    field: Field
    initial: Any = 0


def add_states(stage: Stage, policy: Any, arguments: Iterable[Key] = ()) -> None:
    """Add the inputs of a policy other than observations to the stage: `is_init`, `step_count`, states that it declares.

    Args:
        stage: the policy's inputs.
        policy: the policy.
        arguments: the names of its arguments, as keys.
    """
    wanted = {*read_keys(policy), *arguments}
    found = {key: state for key, state in declared_states(policy).items() if key not in stage.fields}
    if IS_INIT in wanted:
        found.setdefault(IS_INIT, RecurrentState(Field((1,), torch.bool), True))
    if STEP_COUNT in wanted:
        found.setdefault(STEP_COUNT, RecurrentState(Field((1,), torch.int64)))
    _extend(stage, {key: state for key, state in found.items() if key not in stage.fields})


def add_shown_states(stage: Stage, reads: Iterable[Key], outputs: Outputs) -> None:
    """Extend the stage by those of the keys that are states, as the outputs of a call without them show."""
    lead = len(stage.batch_shape)
    shown = {key: outputs.get(after(key)) for key in reads if key not in stage.fields}
    states = {
        key: RecurrentState(Field(tuple(v.shape[lead:]), v.dtype)) for key, v in shown.items() if isinstance(v, torch.Tensor)
    }
    _extend(stage, states)


def missing_states(stage: Stage, policy: Any) -> list[Key]:
    """States that a policy reads and whose form is unknown."""
    writes = written_keys(policy)
    return [key for key in read_keys(policy) if after(key) in writes and key not in stage.fields]


def no_initial_state(keys: list[Key], where: str) -> OptionError:
    """The error for states whose form could not be found."""
    names = [plain(key) for key in keys]
    return OptionError(
        f"{where}: reads the recurrent state {names}, whose shape is not known and without which it cannot be called; tell it: "
        f"policy.initial_state = {{{names[0]!r}: torch.zeros(hidden_size)}}, one row's state without batch dimensions"
    )


def read_keys(policy: Any) -> list[Key]:
    """The keys that a TensorDict module reads; none for other policies."""
    return [as_key(key) for key in getattr(policy, "in_keys", ())]


def written_keys(policy: Any) -> list[Key]:
    """The keys that a TensorDict module writes; none for other policies."""
    return [as_key(key) for key in getattr(policy, "out_keys", ())]


def declared_states(policy: Any) -> dict[Key, RecurrentState]:
    """The states whose form a policy declares."""
    found: dict[Key, RecurrentState] = {}
    declared = getattr(policy, "initial_state", None)
    if declared is not None and not isinstance(declared, Mapping):
        raise OptionError(f"initial_state: expected a dict from keys to one row's state each, got {declared!r}")
    for key, value in (declared or {}).items():
        found[as_key(key)] = _from_declaration(value, key)
    for make_primer in _primers(policy):
        primer = make_primer()
        for key, spec in primer.primers.items(True, True):
            if as_key(key) not in found:
                found[as_key(key)] = RecurrentState(Field(tuple(spec.shape), spec.dtype), _default(primer, key))
    return found


def check_states(stage: Stage, outputs: Mapping[Key, Field], where: str) -> None:
    """Check that a policy writes the states that it reads, in the form of their initial values.

    Raises:
        SpecMismatch: a state is not written, so that it would keep its initial value, or has another shape or dtype.
    """
    for key in stage.initial.keys() - {IS_INIT, STEP_COUNT}:
        expected, found = stage.fields[key], outputs.get(after(key))
        name = f"{where}: recurrent state {plain(key)!r}"
        if found is None:
            raise SpecMismatch(
                f"{name}: expected the policy to return it under {plain(after(key))!r}, found outputs "
                f"{list(map(plain, outputs))}"
            )
        if (expected.shape, expected.dtype) != (found.shape, found.dtype):
            raise SpecMismatch(
                f"{name}: expected {layout_text(expected.shape, expected.dtype)}, as it begins, found "
                f"{layout_text(found.shape, found.dtype)} in the policy's output; make policy.initial_state the same"
            )


def _default(primer: Any, key: Any) -> Any:
    """The initial values that a torchrl primer fills in."""
    default = getattr(primer, "default_value", 0)
    value = default[key] if isinstance(default, Mapping | TensorDictBase) else default
    if getattr(primer, "random", None) or callable(value):
        raise OptionError(
            f"recurrent state {key!r}: expected a primer that begins it with a number or a tensor, found one that draws or "
            f"computes it; tell it: policy.initial_state = {{{key!r}: torch.zeros(hidden_size)}}"
        )
    return _array(value) if isinstance(value, torch.Tensor) else value


def _primers(policy: Any) -> Iterator[Callable[[], Any]]:
    for part in policy.modules() if isinstance(policy, nn.Module) else ():
        make_primer = getattr(part, "make_tensordict_primer", None)
        if callable(make_primer):
            yield make_primer


def _from_declaration(value: Any, key: Any) -> RecurrentState:
    if isinstance(value, torch.Tensor):
        return RecurrentState(Field(tuple(value.shape), value.dtype), _array(value))
    if isinstance(value, Spec) and value.dtype is not None:
        return RecurrentState(Field(tuple(value.shape), value.dtype))
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], torch.dtype):
        return RecurrentState(Field(tuple(value[0]), value[1]))
    if isinstance(value, tuple | list) and all(isinstance(size, int) for size in value):
        return RecurrentState(Field(tuple(value), torch.float32))
    raise OptionError(
        f"initial_state[{key!r}]: expected one row's state as a tensor, a shape, a pair (shape, dtype) or a spec, got {value!r}"
    )


def _array(value: torch.Tensor) -> Array | np.generic:
    return value.detach().cpu().clone().numpy()


def _extend(stage: Stage, states: Mapping[Key, RecurrentState]) -> None:
    if states:
        stage.extend({k: s.field for k, s in states.items()}, {k: s.initial for k, s in states.items()})
