"""Probes a policy by one call at construction, to learn and check its outputs; the call leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from reap.errors import ReapError, SpecMismatch, add_note, telling, text_of
from reap.keys import Key, Sizes, plain
from reap.policy.base import Outputs
from reap.policy.contents.held import Held
from reap.recording.buffers import Stage
from reap.recording.layout import Field, field_of, sizes_of
from reap.specs import Bounded, Categorical, Composite, MultiOneHot, OneHot, Spec
from reap.specs.faults import dtype_name, layout_text
from reap.specs.tensor_fits import as_spec, unreadable_error


@contextmanager
def untouched(held: Held) -> Generator[None]:
    """Run the `with` block under `no_grad`, then restore generators, and a policy's parameters and buffers."""
    random_state = torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    kept, buffers = _values(held), _buffers(held)
    try:
        with torch.no_grad():
            yield
    finally:
        for store, before in buffers:
            store.update(before)
        torch.set_rng_state(random_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)
        with torch.no_grad():
            for tensor, value in kept:
                tensor.copy_(value)


def _values(held: Held) -> list[tuple[torch.Tensor, torch.Tensor]]:
    each = {id(tensor): tensor for tensor in held.tensors().values()}.values()
    tensors = [tensor for tensor in each if not nn.parameter.is_lazy(tensor)]
    return [(own, own.detach().clone()) for own in map(_without_repeats, tensors)]


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """An expanded tensor, which cannot be written to, as it was before."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and not stride:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _buffers(held: Held) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The buffers of modules, with their places, because a policy may replace them as well as change their values.

    TorchScript keeps its buffers elsewhere, and changes them in place only.
    """
    stores = [vars(part).get("_buffers") for part in held.modules().values()]
    return [(store, dict(store)) for store in stores if store]


def explained(held: Held, stage: Stage, reads: Iterable[Key], where: str) -> telling:
    """Add the inputs to an error of the policy's first call.

    Raises:
        SpecMismatch: inputs of a dtype that the policy's layers do not accept.
    """

    def explain(error: BaseException) -> None:
        given = {key: stage.tensors[key] for key in reads}
        if isinstance(error, RuntimeError) and not isinstance(error, ReapError) and "type" in text_of(error):
            _refuse_dtypes(held, given, where, error)
        inputs = ", ".join(f"{plain(key)!r} of {layout_text(value.shape, value.dtype)}" for key, value in given.items())
        add_note(error, f"reap: raised by the first call of {where}, with {inputs or 'nothing'}")

    return telling(explain)


def _refuse_dtypes(held: Held, given: Mapping[Key, torch.Tensor], where: str, error: RuntimeError) -> None:
    parameters = [tensor for tensor in held.tensors().values() if isinstance(tensor, nn.Parameter)]
    expected = {p.dtype for p in parameters if p.dtype.is_floating_point} or {torch.get_default_dtype()}
    wrong = {key: value.dtype for key, value in given.items() if value.dtype not in expected}
    if not wrong:
        return
    wanted = " or ".join(map(dtype_name, expected))
    found = ", ".join(f"{plain(key)!r} of dtype {dtype_name(dtype)}" for key, dtype in wrong.items())
    is_float = any(dtype.is_floating_point for dtype in wrong.values())
    advice = (
        f"build the env with GymEnv(..., dtype=torch.{wanted})" if is_float else f"convert in the policy: .to(torch.{wanted})"
    )
    raise SpecMismatch(f"{where}: expected inputs of dtype {wanted}, found {found} ({text_of(error)}); {advice}") from error


def output_fields(
    outputs: Outputs, actions: Composite, stage: Stage, where: str, *, as_given: bool = False
) -> dict[Key, Field]:
    """Shape and dtype of one row's value of each output, after a check against the env's action specs.

    Args:
        outputs: the outputs of the policy's first call.
        actions: specs of the env's actions.
        stage: the policy's inputs.
        where: the name of the policy, for errors.
        as_given: whether one-hot actions keep their dtype; otherwise they get that of their specs.

    Raises:
        SpecMismatch: an action is missing or does not fit, or an output lacks the batch dimensions or is not a tensor.
    """
    specs = dict(actions.leaves())
    missing = [plain(key) for key in specs if key not in outputs]
    if missing:
        found = [plain(key) for key in outputs]
        raise SpecMismatch(f"{where}: expected the action under {missing}, found outputs {found}")
    fields: dict[Key, Field] = {}
    lead = len(stage.batch_shape)
    sizes = sizes_of({**stage.fields, **{key: field_of(actions, key, lead) for key in specs}})
    for key, value in outputs.items():
        tensor = _tensor(value, key, where)
        try:
            if key in specs:
                checked_action(tensor, specs[key], key, where)
                fields[key] = field_of(actions, key, lead)
                if as_given and isinstance(specs[key], OneHot | MultiOneHot):
                    fields[key] = replace(fields[key], dtype=tensor.dtype)
            else:
                fields[key] = _field(tensor, stage.batch_shape, key, where)
            _check_sizes(fields[key], sizes, key, where)
        except SpecMismatch as error:
            if tuple(tensor.shape[: len(stage.batch_shape)]) == stage.batch_shape:
                raise
            raise SpecMismatch(
                f"{str(error).rstrip('. ')}. The policy is called once for all rows: its outputs begin with "
                f"{stage.batch_shape}."
            ) from error.__cause__
    return fields


def _tensor(value: Any, key: Key, where: str) -> torch.Tensor:
    if isinstance(value, tuple) and any(isinstance(part, torch.Tensor) for part in value):
        raise SpecMismatch(
            f"{where}: output {plain(key)!r}: expected a tensor, found a tuple of {len(value)}; several outputs have names: "
            'return {"action": ..., "log_prob": ...}'
        )
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecMismatch(f"{where}: output {plain(key)!r}: expected a tensor, found {type(value).__name__}") from error
    if type(value) is float and math.isfinite(value) and not bool(tensor.isfinite()):
        raise SpecMismatch(
            f"{where}: output {plain(key)!r}: expected a number that {tensor.dtype} holds, found {value!r}; give a tensor of "
            "the dtype that it is to have"
        )
    unreadable = unreadable_error(tensor, f"{where}: output {plain(key)!r}")
    if unreadable:
        raise unreadable
    return tensor


def _field(tensor: torch.Tensor, batch_shape: tuple[int, ...], key: Key, where: str) -> Field:
    lead = len(batch_shape)
    if tuple(tensor.shape[:lead]) != batch_shape:
        raise SpecMismatch(
            f"{where}: output {plain(key)!r}: expected a shape that starts with the env's batch size {batch_shape}, "
            f"found {tuple(tensor.shape)}"
        )
    return Field(tuple(tensor.shape[lead:]), tensor.dtype)


def _check_sizes(field: Field, sizes: Sizes, key: Key, where: str) -> None:
    """Raise SpecMismatch for an output in a nested TensorDict whose batch dimensions it lacks."""
    for end in range(1, len(key)):
        size = sizes.get(key[:end], ())
        if field.shape[: len(size)] != size:
            raise SpecMismatch(
                f"{where}: output {plain(key)!r}: expected a shape that goes on with {size} after the env's batch size, as "
                f"all values in {plain(key[:end])!r} do, found {field.shape}; give it a key outside of {plain(key[:end])!r}"
            )


def checked_action(action: torch.Tensor, spec: Spec, key: Key, where: str) -> torch.Tensor:
    """Check an action against its spec, and convert it to the spec's dtype; bounds of continuous actions are left to the env.

    Raises:
        SpecMismatch: it does not fit.
    """
    if isinstance(spec, Bounded) and action.shape == spec.shape and action.dtype == spec.dtype:
        if action.is_floating_point() and bool(action.isnan().any()):
            raise SpecMismatch(f"{where}: {plain(key)!r}: expected numbers, found NaN in the first action")
        return action
    if action.is_floating_point() and isinstance(spec, OneHot | Categorical) and not _is_one_hot(action):
        form = f"one_hot(value.argmax(-1), {spec.space.n})" if isinstance(spec, OneHot) else "value.argmax(-1)"
        raise SpecMismatch(
            f"{where}: {plain(key)!r}: expected a choice of {spec.space.n}, dtype {spec.dtype}, "
            f"found shape {tuple(action.shape)}, dtype {action.dtype}. If these are logits or scores, give {form}"
        )
    if isinstance(spec, OneHot | MultiOneHot) and action.shape == spec.shape and bool(((action == 0) | (action == 1)).all()):
        action = action.to(spec.dtype)
    elif spec.dtype is not None and not (spec.dtype.is_floating_point and action.is_floating_point()):
        action = as_spec(action, spec.shape, spec.dtype)
    try:
        spec.validate(action, key=str(plain(key)), where=where)
    except SpecMismatch as error:
        add_note(error, "reap: env.rand_action() shows an action that fits")
        raise
    return action


def _is_one_hot(action: torch.Tensor) -> bool:
    return bool(((action == 0) | (action == 1)).all()) and bool((action.sum(-1) == 1).all())
