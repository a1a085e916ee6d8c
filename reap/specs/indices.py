"""Specs of choices as indices."""

from __future__ import annotations

from typing import Any, Self

import torch

from reap.errors import OptionError
from reap.specs.choices import ChoiceSpec, SingleChoice, Sizes, as_counts, checked_sizes, with_kept_end
from reap.specs.faults import Fault, comparable, range_fault, shape_text, whole_fault
from reap.specs.parts.arguments import DeviceLike, DTypeLike, ShapeLike, as_dtype
from reap.specs.spaces import BoxList, CategoricalBox


class _Indices(ChoiceSpec):
    """Choices as indices, counted from 0."""

    _counts: torch.Tensor

    def rand(
        self,
        shape: ShapeLike = (),
        *,
        generator: torch.Generator | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Indices, drawn uniformly from all choices, or from those that the mask allows.

        Args:
            shape: batch dimensions in front.
            generator: the source of random numbers; torch's own if None.
            mask: the flags of all choices side by side in the last dimension, after the batch dimensions.

        Raises:
            SpecMismatch: the mask has a wrong shape or dtype, or allows nothing somewhere.
        """
        size, indices = self._draw(shape, generator, mask)
        return indices.reshape(size).to(self._dtype)

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        most = (self._counts - 1).to(value.device)
        numbers = value.round() if value.dtype.is_floating_point else comparable(value)
        nearest = torch.minimum(numbers.clamp(min=0), most.to(numbers.dtype))
        return nearest.to(self._dtype) if self._mask is None else self._from_indices(self._with_allowed(self._indices(nearest)))

    def _indices(self, value: torch.Tensor) -> torch.Tensor:
        lead = value.shape[: value.ndim - self.ndim] + torch.Size(self._lead)
        return value.to(torch.int64).reshape(*lead, len(self._sizes))

    def _from_indices(self, indices: torch.Tensor) -> torch.Tensor:
        lead = indices.shape[: indices.ndim - 1 - len(self._lead)]
        return indices.reshape((*lead, *self._shape)).to(self._dtype)

    def _content_fault(self, value: torch.Tensor) -> Fault | None:
        least = torch.zeros((), dtype=torch.int64)
        return range_fault(value, least, self._counts - 1) or whole_fault(value) or self._mask_fault(value)

    def _layout_advice(self, value: torch.Tensor) -> str:
        width = sum(self._sizes)
        if value.ndim > 0 and value.shape[-1] == width and value.shape != self._shape:
            return (
                "It looks like a one-hot vector, but an index is expected: build the env without "
                "categorical_action_encoding=True, or give indices (value.argmax(-1))."
            )
        return super()._layout_advice(value)


class Categorical(SingleChoice, _Indices):
    """Indices 0 .. n-1.

    Args:
        n: the number of choices.
        shape: the shape of a value; `()`, a single index, if None.
        device: where values are made.
        dtype: torch.int64 by default.
        mask: which choices are allowed, `[*shape, n]`; see `update_mask`.

    Example:
        >>> spec = Categorical(4)
        >>> mask = torch.tensor([False, False, True, False])
        >>> spec.rand((3,), mask=mask)
        tensor([2, 2, 2])
        >>> spec.is_in(torch.tensor(4)), spec.project(torch.tensor(4))
        (False, tensor(3))
    """

    _torchrl_name = "Categorical"

    def __init__(
        self,
        n: int,
        shape: ShapeLike | None = None,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = torch.int64,
        mask: torch.Tensor | None = None,
    ) -> None:
        (n,) = checked_sizes((n,), type(self).__name__)
        super().__init__(() if shape is None else shape, device, _int64_unless(dtype))
        self._assign(_sizes=(n,), _counts=torch.tensor(n))
        self._with_mask(mask)

    @property
    def _lead(self) -> tuple[int, ...]:
        return self._shape

    def _like(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(self.n, shape, device, dtype)


class MultiCategorical(_Indices):
    """Several indices, each counted from 0, with its own number of choices.

    Args:
        nvec: the numbers of choices, of any rank.
        shape: the shape of a value, ending with that of nvec; just that if None.
        device: where values are made.
        dtype: torch.int64 by default.
        mask: which choices are allowed; see `update_mask`.

    A mask for `rand` holds the flags of all choices side by side, in the order of `nvec.flatten()`.

    Example:
        >>> spec = MultiCategorical([2, 3])
        >>> spec.is_in(torch.tensor([1, 2])), spec.is_in(torch.tensor([2, 1]))
        (True, False)
        >>> spec.rand(mask=torch.tensor([False, True, True, False, False]))
        tensor([1, 0])
    """

    def __init__(
        self,
        nvec: Sizes,
        shape: ShapeLike | None = None,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = torch.int64,
        mask: torch.Tensor | None = None,
    ) -> None:
        counts = as_counts(nvec, type(self).__name__)
        super().__init__(counts.shape if shape is None else shape, device, _int64_unless(dtype))
        if counts.ndim == 0 or self._shape[-counts.ndim :] != counts.shape:
            raise OptionError(
                f"MultiCategorical: expected a shape that ends with that of nvec, {shape_text(counts.shape)}, "
                f"found {shape_text(self._shape)}."
            )
        self._assign(_sizes=tuple(counts.flatten().tolist()), _counts=counts)
        self._with_mask(mask)

    @property
    def _is_several(self) -> bool:
        return True

    @property
    def nvec(self) -> torch.Tensor:
        """The number of choices of each element, int64 of the spec's shape."""
        return self._counts.expand(self._shape)

    @property
    def space(self) -> BoxList:
        """The numbers of choices, as `space[i].n`, in the order of `nvec.flatten()`."""
        return BoxList(tuple(CategoricalBox(size) for size in self._sizes))

    @property
    def _lead(self) -> tuple[int, ...]:
        return self._shape[: self.ndim - self._counts.ndim]

    def _expanded_shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return with_kept_end(super()._expanded_shape(sizes), self._shape, self._counts.ndim, type(self).__name__)

    def _like(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(self._counts, shape, device, dtype)

    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "MultiCategorical", (self.nvec.clone(),), {"dtype": self._dtype, "mask": self._mask}

    def __repr__(self) -> str:
        return self._text(f"nvec={self._counts.tolist()}")


def _int64_unless(dtype: DTypeLike | None) -> torch.dtype:
    return torch.int64 if dtype is None else as_dtype(dtype)
