"""`WeightLayout`: the names, shapes and dtypes of weights, and readers for all forms of weights.

A policy (`Held`), a module, a TensorDict of parameters and a state dict all become dotted names: `encoder.0.weight`. Extra
state (`get_extra_state`) has its name in a torch state dict: `encoder._extra_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn
from torch.nn.parameter import is_lazy

from reap.errors import OptionError, SpecMismatch
from reap.keys import as_key
from reap.policy.contents.held import Held
from reap.recording.layout import Field
from reap.weights.attributes import ATTRIBUTES, set_attributes

copy_all: Callable[..., Any] = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

EXTRA_STATE = "_extra_state"
"""The last part of the name of extra state, as in `nn.Module.state_dict`."""


@dataclass(frozen=True)
class WeightLayout(Mapping[str, Field]):
    """Shape and dtype of weights by dotted name; a parameter that several layers share occurs once.

    Attributes:
        fields: shape and dtype by name.
        buffers: the names that may be omitted when weights are given.
        aliases: other names of the same weights, each mapped to its name in `fields`: names of shared parameters, and, if one
            module has all weights of a function, their names in that module.
        extras: names of extra state.

    Example:
        >>> described = describe(nn.BatchNorm1d(2, affine=False))
        >>> {name: (field.shape, field.dtype) for name, field in described.items()}
        {'running_mean': ((2,), torch.float32), 'running_var': ((2,), torch.float32), 'num_batches_tracked': ((), torch.int64)}
    """

    fields: Mapping[str, Field]
    buffers: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    extras: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Field:
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def canonical(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Extra states under their names in this layout."""
        return {self.aliases.get(name, name): state for name, state in states.items()}

    def select(self, weights: Any) -> dict[str, torch.Tensor]:
        """The tensors of weights under their names in this layout.

        Raises:
            OptionError: not weights.
            SpecMismatch: names or shapes differ, a dtype cannot hold a number, or the names of one weight come with different
                values.
        """
        given = weights_by_name(weights)
        # A parameter that several layers share has several names; one of them will do.
        found = {self.aliases.get(name, name): value for name, value in given.items()}
        unknown = sorted(name for name in given if self.aliases.get(name, name) not in self.fields)
        missing = sorted(name for name in self.fields if name not in found and name not in self.buffers)
        if unknown or missing:
            raise SpecMismatch(f"weights: expected the names of the policy; missing {missing}, unknown {unknown}")
        for name, value in given.items():
            own = self.aliases.get(name, name)
            field = self.fields[own]
            if field.shape != value.shape:
                raise SpecMismatch(f"weights: {name}: expected shape {field.shape}, found {tuple(value.shape)}")
            if field.dtype != value.dtype and (lost := _lost(value, field.dtype)) is not None:
                raise SpecMismatch(
                    f"weights: {name}: expected numbers that {field.dtype} can hold, found {lost} ({value.dtype})"
                )
        for name, value in given.items():
            if not _is_equal(value, found[self.aliases.get(name, name)]):
                raise SpecMismatch(
                    f"weights: {name}: expected the values of the other names that this weight has in the policy that acts, "
                    "found others; share the parameter here too, or build a new collector"
                )
        return found


def _lost(value: torch.Tensor, dtype: torch.dtype) -> Any:
    """The first number that another dtype cannot hold, as none but complex ones hold complex numbers; None if there is none.

    A float that is rounded is held.
    """
    given = value.detach()
    if given.is_meta:  # it has no numbers: the shapes are looked at
        return None
    if given.is_complex() and not dtype.is_complex:
        lost = torch.ones_like(given, dtype=torch.bool)
    elif dtype.is_floating_point or dtype.is_complex:
        lost = given.to(dtype).isinf() & ~given.isinf()
    else:
        lost = given.to(dtype).to(given.dtype) != given
    return given[lost][0].item() if bool(lost.any()) else None


def _is_equal(value: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape are the same memory, or have the same values."""
    if value is other or (value.data_ptr() == other.data_ptr() and value.stride() == other.stride()):
        return True
    a, b = value.detach().cpu(), other.detach().cpu()
    return bool(((a == b) | ((a != a) & (b != b))).all())  # noqa: PLR0124  NaN is NaN still


def describe(weights: Any) -> WeightLayout:
    """Names, shapes and dtypes of the weights of a module, a TensorDict of parameters or a state dict.

    Args:
        weights: the result of `held_by` for the policy, a module, or weights; if weights are given without their module, each
            update must contain all of them.

    Raises:
        OptionError: not weights, or weights without fixed shape or place: an uncalled lazy layer, a sparse tensor, those of a
            quantized layer.
    """
    if isinstance(weights, Held) and weights.packs_weights:
        raise OptionError(
            "weights: the policy has weights in a form of torch's own (as quantized layers have), which cannot be copied into "
            "another policy; collect with it in this process, or give workers the policy that it was made from"
        )
    tensors = weights_by_name(weights)
    for name, value in tensors.items():
        if is_lazy(value):
            raise OptionError(f"weights: {name} has no shape yet; call the policy once, so that its lazy layers are made")
        if value.layout is not torch.strided:
            raise OptionError(f"weights: {name}: expected a dense tensor, found {value.layout}")
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, value in tensors.items():
        if first.setdefault(id(value), name) != name:
            aliases[name] = first[id(value)]
    extras = frozenset(extra_states(weights))
    for name, short in _short_names(weights, (*tensors, *extras)).items():
        if short not in tensors:
            aliases[short] = aliases.get(name, name)
    fields = {name: Field(tuple(value.shape), value.dtype) for name, value in tensors.items() if name not in aliases}
    buffers = {name for name in fields if not isinstance(tensors[name], nn.Parameter)}
    is_module = isinstance(weights, nn.Module | Held)
    return WeightLayout(fields, frozenset(buffers if is_module else ()), aliases, extras)


def _short_names(weights: Any, names: Iterable[str]) -> dict[str, str]:
    """The names of weights in the single module that has them all, by their own names."""
    prefix = f"{weights.main.name}." if isinstance(weights, Held) and weights.main is not None else ""
    return {name: name.removeprefix(prefix) for name in names if prefix and name.startswith(prefix)}


def weights_by_name(weights: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers of a policy, a module, a TensorDict of parameters or a state dict, by their dotted names."""
    if isinstance(weights, Held):
        return weights.tensors()
    if isinstance(weights, nn.Module):
        parameters = weights.named_parameters(remove_duplicate=False)
        return {**dict(parameters), **dict(weights.named_buffers(remove_duplicate=False))}
    if isinstance(weights, TensorDictBase):
        leaves: Any = weights.items(include_nested=True, leaves_only=True)
        return {".".join(as_key(key)): value for key, value in leaves}
    if isinstance(weights, Mapping):
        return {name: value for name, value in weights.items() if isinstance(value, torch.Tensor) and not _is_extra(name)}
    raise OptionError(f"weights: expected a module, a TensorDict or a state dict, got {type(weights).__name__}")


def extra_states(weights: Any) -> dict[str, Any]:
    """Extra state of modules that can restore it, or in a state dict, by its dotted name."""
    if isinstance(weights, nn.Module | Held):
        return {name: module.get_extra_state() for name, module in _modules_with_extra_state(weights)}
    if isinstance(weights, Mapping) and not isinstance(weights, TensorDictBase):
        return {name: value for name, value in weights.items() if _is_extra(name) or name == ATTRIBUTES}
    return {}


def load_extra_states(target: Any, states: Mapping[str, Any]) -> None:
    """Restore extra state to its modules, or write it into a state dict."""
    if isinstance(target, nn.Module | Held):
        modules = dict(_modules_with_extra_state(target))
        short = _short_names(target, modules)
        for name, module in modules.items():
            for given in {name, short.get(name, name)} & states.keys():
                module.set_extra_state(states[given])
    elif isinstance(target, dict):
        target.update({name: value for name, value in states.items() if name != ATTRIBUTES})
    if isinstance(target, Held):
        set_attributes(target, states.get(ATTRIBUTES, {}))


def copy_weights(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    """Copy tensors into tensors in place, for any devices, dtypes and strides."""
    into, values = list(targets), list(sources)
    if into:
        with torch.no_grad():
            copy_all(into, values)


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == EXTRA_STATE


def _modules_with_extra_state(weights: nn.Module | Held) -> Iterator[tuple[str, nn.Module]]:
    for name, child in weights.modules().items() if isinstance(weights, Held) else weights.named_modules():
        kind = type(child)
        both = kind.get_extra_state is not nn.Module.get_extra_state and kind.set_extra_state is not nn.Module.set_extra_state
        if both:
            yield (f"{name}.{EXTRA_STATE}" if name else EXTRA_STATE), child
