"""The rule of `fits` for tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from reap.errors import SpecMismatch
from reap.keys import NestedKey

Values = Sequence[torch.Tensor]

NUMBERS = "a dense tensor with values"


def unreadable_kind(value: Any) -> str:
    """The kind of a tensor whose numbers cannot be copied into a dense one, and a remedy; empty for any other value."""
    if not isinstance(value, torch.Tensor):
        return ""
    if value.is_nested:
        return "a nested one; pad it: torch.nested.to_padded_tensor(value, 0.0)"
    if value.is_meta:
        return "one on device meta; make it where it has values: torch.zeros(..., device='cpu')"
    if value.is_quantized:
        return "a quantized one; write value.dequantize()"
    return "" if value.layout is torch.strided else f"one of layout {value.layout}; write value.to_dense()"


def unreadable_error(value: Any, name: str, where: str = "") -> SpecMismatch | None:
    """The error for a tensor whose numbers cannot be copied into a dense one; None for any other value.

    Args:
        value: the value.
        name: its owner and its key.
        where: the call that it comes from, as in "in a step ".
    """
    unreadable = unreadable_kind(value)
    return SpecMismatch(f"{name}: expected {NUMBERS}, found {where}{unreadable}") if unreadable else None


class TensorFits:
    """Takes the values of several keys as tensors of the shapes and dtypes that are expected.

    Args:
        keys: the keys.
        shapes: a shape for each.
        dtypes: a dtype for each.
    """

    def __init__(self, keys: Sequence[NestedKey], shapes: Sequence[torch.Size], dtypes: Sequence[torch.dtype]) -> None:
        self.keys, self.shapes, self.dtypes = list(keys), list(shapes), list(dtypes)

    def take(self, values: Sequence[Any], owner: str, call: str) -> Values:
        """The values, which can be copied to tensors of these shapes and dtypes.

        Args:
            values: the value under each key; None for a key that is missing.
            owner: whose values they are, for the error.
            call: the call that they come from or go to.

        Raises:
            SpecMismatch: one does not fit.
        """
        try:
            if [value.dtype for value in values] == self.dtypes and [value.shape for value in values] == self.shapes:
                return values
        except (AttributeError, RuntimeError):  # no tensor, or a nested one, which has no shape
            pass
        return [self._taken(place, value, owner, call) for place, value in enumerate(values)]

    def uncopied(self, values: Values, owner: str, call: str, error: Exception) -> Exception:
        """The error for values whose shapes and dtypes fit and that could not be copied."""
        for key, value in zip(self.keys, values, strict=True):
            unreadable = unreadable_error(value, f"{owner}: {key!r}", f"in a {call} ")
            if unreadable:
                return unreadable
        return error

    def _taken(self, place: int, value: Any, owner: str, call: str) -> torch.Tensor:
        shape, dtype = self.shapes[place], self.dtypes[place]
        name = f"{owner}: {self.keys[place]!r}"
        unreadable = unreadable_error(value, name, f"in a {call} ")
        if unreadable:
            raise unreadable
        if not isinstance(value, torch.Tensor) or value.shape != shape:
            kind = "nothing" if value is None else f"a {type(value).__name__}"
            found = tuple(value.shape) if isinstance(value, torch.Tensor) else kind
            raise SpecMismatch(
                f"{name}: expected shape {tuple(shape)}, as the spec says, found {found} in a {call}; values of one key keep "
                "their shape: pad them"
            )
        fitting = tensor_as_dtype(value, dtype)
        if fitting is None:
            raise SpecMismatch(
                f"{name}: expected dtype {dtype}, as the spec says, found {value.dtype} in a {call}, with values that it does "
                f"not hold; cast them: value.to({dtype})"
            )
        return fitting


class LooseTensorFits(TensorFits):
    """Takes values as torch copies them: compares their shapes, but not their dtypes."""

    def take(self, values: Sequence[Any], owner: str, call: str) -> Values:
        """The values; see `TensorFits`."""
        if [getattr(value, "shape", None) for value in values] == self.shapes:
            return values
        return super().take(values, owner, call)


def tensor_as_dtype(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """A tensor that can be copied to one of a dtype by the rule of `fits`; None if it does not fit."""
    source = value.dtype
    if source == dtype or dtype.is_complex or (source == torch.bool and dtype != torch.bool):
        return value
    is_float = source.is_floating_point or source.is_complex
    if dtype.is_floating_point:
        fits = not source.is_complex and (not is_float or _stays_finite(value, dtype))
    else:
        fits = not is_float and (not value.numel() or _holds(dtype, int(value.min()), int(value.max())))
    return value if fits else None


def _stays_finite(value: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether all finite numbers are finite in another float dtype; torch cannot test those of 8 bits."""
    cast = value.to(dtype)
    before, after = (part.float() if part.dtype.itemsize == 1 else part for part in (value, cast))
    return torch.equal(before.isfinite(), after.isfinite())


def _holds(dtype: torch.dtype, least: int, most: int) -> bool:
    """Whether a dtype of integers, or bool, holds them."""
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return low <= least and most <= high


def as_spec(value: Any, shape: torch.Size, dtype: torch.dtype) -> Any:
    """The value converted for a spec of this shape and dtype if it fits, otherwise unchanged."""
    if isinstance(value, torch.Tensor) and not unreadable_kind(value) and value.shape == shape and value.dtype != dtype:
        fitting = tensor_as_dtype(value, dtype)
        return value if fitting is None else fitting.to(dtype)
    return value
