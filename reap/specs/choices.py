"""The base of all specs of choices: numbers of choices, joint draws, masks, and conversion between twins.

A choice is an index or a one-hot vector: `Categorical` and `OneHot`, and `MultiCategorical` and `MultiOneHot`, are twins.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch

from reap.errors import OptionError
from reap.specs.drawing import as_flags, draw, encode
from reap.specs.faults import Fault, first_index, shape_text
from reap.specs.parts.arguments import ShapeLike, as_shape
from reap.specs.parts.reshaping import Change
from reap.specs.parts.torchrl import KINDS
from reap.specs.spaces import CategoricalBox
from reap.specs.tensor_spec import TensorSpec

Sizes = Sequence[int] | Sequence[Sequence[int]] | torch.Tensor


class ChoiceSpec(TensorSpec):
    """Choices that are drawn together.

    `_sizes` holds the number of options of each, `_lead` the shape in front of the dimensions of one set of choices.
    """

    _sizes: tuple[int, ...]
    _mask: torch.Tensor | None = None
    """Flags `[*_lead, sum(_sizes)]` of the choices that are allowed; None allows all."""

    @property
    @abstractmethod
    def _lead(self) -> tuple[int, ...]: ...

    @abstractmethod
    def _indices(self, value: torch.Tensor) -> torch.Tensor:
        """The choices `[*lead, len(_sizes)]` in a value of the spec, int64."""

    # ------------------------------------------------------------------ masks

    @property
    def mask(self) -> torch.Tensor | None:
        """Which choices are allowed, side by side in the last dimension; None allows all."""
        return self._mask

    def update_mask(self, mask: torch.Tensor | None) -> None:
        """Allow other choices from now on; a spec accepts no other change.

        Draws, `is_in` and `project` respect the mask. An env's own masks need no call: they are observations, under
        `action_mask`.

        Args:
            mask: True where a choice is allowed, broadcast to `[*shape, n]` for indices and to `shape` for one-hot vectors,
                with the flags of several choices side by side; None allows all.

        Raises:
            SpecMismatch: it has a wrong shape or dtype.
        """
        flags = None if mask is None else as_flags(mask, (*self._lead, sum(self._sizes))).to(self._device).clone()
        self._assign(_mask=flags)

    def _draw(
        self, shape: ShapeLike, generator: torch.Generator | None, mask: torch.Tensor | None
    ) -> tuple[torch.Size, torch.Tensor]:
        batch = as_shape(shape)
        lead = (*batch, *self._lead)
        allowed = self._mask if mask is None else mask
        indices = draw(self._sizes, lead, device=self._device, generator=generator, mask=allowed)
        return torch.Size((*batch, *self._shape)), indices

    def _mask_fault(self, value: torch.Tensor) -> Fault | None:
        """The first choice that the mask forbids, in an otherwise valid value."""
        if self._mask is None:
            return None
        allowed = self._allowed(self._indices(value))
        if bool(allowed.all()):
            return None
        index = first_index(~allowed)
        return Fault("choices that the mask allows", f"one that it forbids at index {index[:-1]}")

    def _allowed(self, indices: torch.Tensor) -> torch.Tensor:
        """Whether each of the choices `[*lead, len(_sizes)]` is allowed."""
        assert self._mask is not None
        flags = self._mask.to(indices.device).broadcast_to((*indices.shape[:-1], sum(self._sizes)))
        blocks = zip(flags.split(self._sizes, -1), indices.unbind(-1), strict=True)
        return torch.stack([block.gather(-1, column.unsqueeze(-1)).squeeze(-1) for block, column in blocks], -1)

    def _with_allowed(self, indices: torch.Tensor) -> torch.Tensor:
        """The choices, with another one drawn for each that the mask forbids."""
        if self._mask is None:
            return indices
        lead = tuple(indices.shape[:-1])
        others = draw(self._sizes, lead, device=indices.device, generator=None, mask=self._mask)
        return torch.where(self._allowed(indices), indices, others)

    def _with_mask(self, mask: torch.Tensor | None) -> Self:
        if mask is not None:
            self.update_mask(mask)
        return self

    def _rebuilt(
        self,
        *,
        shape: tuple[int, ...] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        return super()._rebuilt(shape=shape, device=device, dtype=dtype)._with_mask(self._mask)

    def _mapped(self, change: Change) -> Self:
        return super()._mapped(change)._with_mask(None if self._mask is None else change(self._mask))

    # ------------------------------------------------------------------ twins

    def to_categorical_spec(self) -> Any:
        """The twin whose values are indices."""
        return self._of_kind("Categorical", None)

    def to_one_hot_spec(self) -> Any:
        """The twin whose values are one-hot vectors, bool."""
        return self._of_kind("OneHot", torch.bool)

    @property
    def _is_several(self) -> bool:
        """Whether there are several choices side by side."""
        return False

    def _of_kind(self, name: str, dtype: torch.dtype | None) -> Any:
        indices_shape = (*self._lead, len(self._sizes)) if self._is_several else self._lead
        shape = indices_shape if name == "Categorical" else (*self._lead, sum(self._sizes))
        kind: Any = KINDS[f"Multi{name}" if self._is_several else name]
        if isinstance(self, kind):
            return self.clone()
        twin = kind(self._sizes if self._is_several else self._sizes[0], shape, self._device, dtype)
        return twin._with_mask(self._mask)

    def to_categorical(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """A value of the spec as indices, int64.

        Args:
            val: the value.
            safe: raise SpecMismatch for a value that is not in the spec.
        """
        indices = self._checked_indices(val, safe)
        return indices if self._is_several else indices.squeeze(-1)

    def to_one_hot(self, val: torch.Tensor, safe: bool | None = None) -> torch.Tensor:
        """A value of the spec as one-hot vectors, bool; several side by side.

        Args:
            val: the value.
            safe: raise SpecMismatch for a value that is not in the spec.
        """
        return encode(self._checked_indices(val, safe), self._sizes, torch.bool)

    def _checked_indices(self, val: torch.Tensor, safe: bool | None) -> torch.Tensor:
        if safe:
            self.assert_is_in(val)
        return self._indices(val)

    # ------------------------------------------------------------------ all choices

    def cardinality(self) -> int:
        """The number of choices; for several choices, the number of combinations."""
        return int(torch.tensor(self._sizes).prod())

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """All choices, each filling the spec's shape: `[cardinality, *shape]`; see `Values`."""
        every = torch.cartesian_prod(*(torch.arange(size, device=self._device) for size in self._sizes))
        every = every.reshape(-1, len(self._sizes))
        if use_mask and self._mask is not None:
            flags = self._mask.reshape(-1, sum(self._sizes))
            if not bool((flags == flags[0]).all()):
                raise OptionError(f"{type(self).__name__}.enumerate: expected one mask for all elements, found different ones.")
            blocks = zip(flags[0].split(self._sizes), every.unbind(-1), strict=True)
            every = every[torch.stack([block[column] for block, column in blocks], -1).all(-1)]
        wide = every.reshape(len(every), *(1,) * len(self._lead), len(self._sizes))
        return self._from_indices(wide.expand(len(every), *self._lead, len(self._sizes)))

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        if same is not True or not isinstance(other, ChoiceSpec):
            return same
        mine, theirs = self._mask, other._mask
        return mine is theirs or (mine is not None and theirs is not None and torch.equal(mine, theirs))

    def __hash__(self) -> int:
        return super().__hash__()

    @abstractmethod
    def _from_indices(self, indices: torch.Tensor) -> torch.Tensor:
        """The value of the spec's dtype for choices `[*lead, len(_sizes)]`."""


class SingleChoice(ChoiceSpec):
    """A single choice from `n`, in the form that a subclass gives it."""

    _torchrl_name: str

    @property
    def n(self) -> int:
        """The number of choices."""
        return self._sizes[0]

    @property
    def space(self) -> CategoricalBox:
        """The number of choices, as `space.n`."""
        return CategoricalBox(self.n)

    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return self._torchrl_name, (self.n,), {"dtype": self._dtype, "mask": self._mask}

    def __repr__(self) -> str:
        return self._text(f"n={self.n}")


def checked_sizes(sizes: Iterable[int], owner: str) -> tuple[int, ...]:
    """The numbers of choices, if there are any and each is 1 or more."""
    numbers = tuple(int(size) for size in sizes)
    if not numbers or min(numbers) < 1:
        raise OptionError(f"{owner}: expected one choice or more, found {numbers}.")
    return numbers


def as_counts(nvec: Sizes, owner: str) -> torch.Tensor:
    """The numbers of choices as an int64 tensor of its own, each 1 or more."""
    counts = torch.as_tensor(nvec).to("cpu", torch.int64, copy=True)
    checked_sizes(counts.flatten().tolist(), owner)
    return counts


def require_last(shape: torch.Size, width: int, owner: str, name: str) -> None:
    """Raise unless the shape ends with `width`."""
    if not shape or shape[-1] != width:
        raise OptionError(f"{owner}: expected a shape that ends with {name}, {width}, found {shape_text(shape)}.")


def with_kept_end(shape: tuple[int, ...], own: torch.Size, count: int, owner: str) -> tuple[int, ...]:
    """The shape, if its last dimensions are still those of one set of choices."""
    if shape[-count:] != tuple(own[-count:]):
        raise OptionError(
            f"{owner}.expand: expected the last dimensions to stay {shape_text(own[-count:])}, found {shape_text(shape)}."
        )
    return shape
