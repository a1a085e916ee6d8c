"""The spec of bits."""

from __future__ import annotations

from typing import Any, Self

import torch

from reap.errors import OptionError
from reap.specs.choices import require_last
from reap.specs.drawing import draw
from reap.specs.faults import Fault, comparable, range_fault, whole_fault
from reap.specs.parts.arguments import DeviceLike, DTypeLike, ShapeLike, as_shape
from reap.specs.spaces import CategoricalBox
from reap.specs.tensor_spec import TensorSpec


class Binary(TensorSpec):
    """Bits: every element is 0 or 1.

    Args:
        n: the length of the last dimension; taken from `shape` if None.
        shape: the shape of a value; `(n,)` if None.
        device: where values are made.
        dtype: torch.int8 by default.

    Example:
        >>> Binary(3).is_in(torch.tensor([0, 1, 2], dtype=torch.int8))
        False
    """

    def __init__(
        self,
        n: int | None = None,
        shape: ShapeLike | None = None,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = torch.int8,
    ) -> None:
        if n is None and shape is None:
            raise OptionError("Binary: expected n or shape, found neither. Give one of them.")
        size = (n,) if shape is None and n is not None else as_shape(shape or ())
        super().__init__(size, device, torch.int8 if dtype is None else dtype)
        if n is not None:
            require_last(self._shape, n, "Binary", "n")

    @property
    def n(self) -> int:
        """2: the number of values that an element can have."""
        return 2

    @property
    def space(self) -> CategoricalBox:
        """The number of values that an element can have, 2, as `space.n`."""
        return CategoricalBox(2)

    def rand(
        self,
        shape: ShapeLike = (),
        *,
        generator: torch.Generator | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fair bits of shape `(*shape, *self.shape)`."""
        self._refuse(mask)
        size = (*as_shape(shape), *self._shape)
        return draw((2,), size, device=self._device, generator=generator, mask=None).squeeze(-1).to(self._dtype)

    def cardinality(self) -> int:
        """2: the number of values that an element can have."""
        return 2

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """Zeros, and ones: `[2, *shape]`."""
        return torch.stack([self.zero(), self.one()])

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        numbers = value.round() if value.dtype.is_floating_point else comparable(value)
        return numbers.clamp(0, 1).to(self._dtype)

    def _content_fault(self, value: torch.Tensor) -> Fault | None:
        least = torch.zeros((), dtype=torch.int64)
        return range_fault(value, least, least + 1) or whole_fault(value)

    def _like(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(None, shape, device, dtype)

    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "Binary", (self._shape[-1] if self._shape else 1,), {"dtype": self._dtype}

    def __repr__(self) -> str:
        return self._text()
