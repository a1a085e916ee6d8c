"""Specs of choices as one-hot vectors."""

from __future__ import annotations

from typing import Any, Self

import torch

from reap.specs.choices import ChoiceSpec, SingleChoice, Sizes, as_counts, checked_sizes, require_last, with_kept_end
from reap.specs.drawing import encode
from reap.specs.faults import Fault, comparable, first_index
from reap.specs.parts.arguments import DeviceLike, DTypeLike, ShapeLike
from reap.specs.parts.values import as_array
from reap.specs.spaces import BoxList, CategoricalBox

ONE_HOT = "exactly one 1 and else zeros"


def is_not_one_hot(rows: Any) -> Any:
    """Which rows `[..., n]` of a tensor or an array are not exactly one 1 and otherwise zeros, bool `[...]`."""
    return ((rows == 1).sum(-1) != 1) | ((rows != 0).sum(-1) != 1)


class _OneHots(ChoiceSpec):
    """Choices as one-hot blocks, side by side in the last dimension."""

    @property
    def _lead(self) -> tuple[int, ...]:
        return self._shape[:-1]

    def rand(
        self,
        shape: ShapeLike = (),
        *,
        generator: torch.Generator | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One-hot vectors, drawn uniformly from all choices, or from those that the mask allows.

        Args:
            shape: batch dimensions in front.
            generator: the source of random numbers; torch's own if None.
            mask: True where an element may be the hot one; broadcast to `(*shape, *self.shape)`.

        Raises:
            SpecMismatch: the mask has a wrong shape or dtype, or allows nothing somewhere.
        """
        size, indices = self._draw(shape, generator, mask)
        return encode(indices, self._sizes, self._dtype).reshape(size)

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        return self._from_indices(self._with_allowed(self._indices(value)))

    def _indices(self, value: torch.Tensor) -> torch.Tensor:
        numbers = value if value.dtype.is_floating_point else comparable(value)
        return torch.stack([block.argmax(-1) for block in numbers.split(self._sizes, -1)], -1)

    def _from_indices(self, indices: torch.Tensor) -> torch.Tensor:
        return encode(indices, self._sizes, self._dtype).reshape(*indices.shape[:-1], self._shape[-1])

    def encode(self, val: Any, *, ignore_device: bool = False) -> torch.Tensor:
        """Indices, or vectors of the spec's length, as one-hot vectors; see `Values`.

        Example:
            >>> OneHot(3).encode(1)
            tensor([False,  True, False])
        """
        given = torch.as_tensor(val)
        if given.shape[max(given.ndim - self.ndim, 0) :] == self._shape:
            return super().encode(given, ignore_device=ignore_device)
        kind = self.to_categorical_spec()
        indices = kind.encode(given, ignore_device=ignore_device)
        kind.assert_is_in(indices)
        return self._from_indices(indices.reshape(*indices.shape[: indices.ndim - kind.ndim], *self._lead, len(self._sizes)))

    def to_numpy(self, val: torch.Tensor, safe: bool | None = None) -> Any:
        """The indices of the choices, as an array on the host; see `Values`."""
        return as_array(self.to_categorical(val, safe))

    def _content_fault(self, value: torch.Tensor) -> Fault | None:
        numbers = value if value.dtype.is_floating_point else comparable(value)
        for block in numbers.split(self._sizes, -1):
            wrong = is_not_one_hot(block)
            if bool(wrong.any()):
                index = first_index(wrong)
                at = f" at index {index}" if index else ""
                many = f" in each of the blocks {self._sizes}" if len(self._sizes) > 1 else ""
                return Fault(f"{ONE_HOT}{many}", f"{block[index].tolist()}{at}")
        return self._mask_fault(value)

    def _layout_advice(self, value: torch.Tensor) -> str:
        index_shape = self._lead if len(self._sizes) == 1 else (*self._lead, len(self._sizes))
        is_index = tuple(value.shape) == index_shape or (len(self._sizes) == 1 and tuple(value.shape) == (*index_shape, 1))
        if is_index and value.shape != self._shape:
            return (
                "It looks like an index, but a one-hot vector is expected: GymEnv(env, categorical_action_encoding=True) takes "
                "indices, of gymnasium's vector envs too; or encode it with torch.nn.functional.one_hot."
            )
        return super()._layout_advice(value)

    def _expanded_shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return with_kept_end(super()._expanded_shape(sizes), self._shape, 1, type(self).__name__)


class OneHot(SingleChoice, _OneHots):
    """One-hot vectors of length n.

    Args:
        n: the number of choices.
        shape: the shape of a value, ending with n; `(n,)` if None.
        device: where values are made.
        dtype: torch.bool by default; `spec_from_space` uses torch.int64.
        mask: which choices are allowed; see `update_mask`.

    Example:
        >>> spec = OneHot(3, dtype=torch.int64)
        >>> spec.rand(mask=torch.tensor([False, True, False]))
        tensor([0, 1, 0])
        >>> spec.is_in(torch.tensor([1, 1, 0])), spec.project(torch.tensor([0.2, 0.1, 0.7]))
        (False, tensor([0, 0, 1]))
    """

    _torchrl_name = "OneHot"

    def __init__(
        self,
        n: int,
        shape: ShapeLike | None = None,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = torch.bool,
        mask: torch.Tensor | None = None,
    ) -> None:
        sizes = checked_sizes((n,), type(self).__name__)
        super().__init__(sizes if shape is None else shape, device, torch.bool if dtype is None else dtype)
        self._assign(_sizes=sizes)
        require_last(self._shape, sum(sizes), type(self).__name__, "n")
        self._with_mask(mask)

    def _like(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(self.n, shape, device, dtype)


class MultiOneHot(_OneHots):
    """Several one-hot vectors joined in the last dimension.

    Args:
        nvec: the lengths of the vectors; one of higher rank is flattened.
        shape: the shape of a value, ending with the sum of nvec; just that if None.
        device: where values are made.
        dtype: torch.bool by default; `spec_from_space` uses torch.int64.
        mask: which choices are allowed; see `update_mask`.

    Example:
        >>> spec = MultiOneHot([2, 3], dtype=torch.int64)
        >>> spec.is_in(torch.tensor([1, 0, 0, 0, 1])), spec.is_in(torch.tensor([1, 1, 0, 0, 0]))
        (True, False)
        >>> [box.n for box in spec.space]
        [2, 3]
    """

    def __init__(
        self,
        nvec: Sizes,
        shape: ShapeLike | None = None,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = torch.bool,
        mask: torch.Tensor | None = None,
    ) -> None:
        counts = as_counts(nvec, type(self).__name__).flatten()
        width = int(counts.sum())
        super().__init__((width,) if shape is None else shape, device, torch.bool if dtype is None else dtype)
        self._assign(_sizes=tuple(counts.tolist()))
        require_last(self._shape, width, type(self).__name__, "the sum of nvec")
        self._with_mask(mask)

    @property
    def _is_several(self) -> bool:
        return True

    @property
    def nvec(self) -> torch.Tensor:
        """The lengths of the joined vectors, int64 `[len(nvec)]`."""
        return torch.tensor(self._sizes)

    @property
    def space(self) -> BoxList:
        """The lengths of the joined vectors, as `space[i].n`."""
        return BoxList(tuple(CategoricalBox(size) for size in self._sizes))

    def _like(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(self._sizes, shape, device, dtype)

    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "MultiOneHot", (list(self._sizes),), {"dtype": self._dtype, "mask": self._mask}

    def __repr__(self) -> str:
        return self._text(f"nvec={list(self._sizes)}")
