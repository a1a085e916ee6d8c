"""The spec of values that are not tensors: strings, graphs, any Python object."""

from __future__ import annotations

from typing import Any, Self

import torch

from reap.keys import NestedKey
from reap.optional import tensordict
from reap.specs.base import Spec
from reap.specs.faults import Fault, shape_text
from reap.specs.parts.arguments import DeviceLike, DTypeLike, ShapeLike, as_shape
from reap.specs.parts.reshaping import Change
from reap.specs.parts.torchrl import introduce


class NonTensor(Spec):
    """Any Python object.

    Args:
        shape: the batch dimensions of a value; an env's string has `()`.
        device: stored, but without effect on the values.
        dtype: accepted, like other specs do; there is none.
        example_data: the value that `rand` and `zero` return.

    Example:
        >>> spec = NonTensor((), example_data="a text")
        >>> spec.rand().data, spec.is_in("another")
        ('a text', True)
    """

    _device: torch.device | None
    _example: Any

    def __init__(
        self,
        shape: ShapeLike = (1,),
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        example_data: Any = None,
    ) -> None:
        introduce()
        place = None if device is None else torch.device(device)
        self._assign(_shape=as_shape(shape), _device=place, _example=example_data)

    @property
    def dtype(self) -> None:
        """None: there are no tensors."""
        return

    @property
    def device(self) -> torch.device | None:
        """As given."""
        return self._device

    @property
    def space(self) -> None:
        """None: every object is in the spec."""
        return

    @property
    def example_data(self) -> Any:
        """The value that `rand` and `zero` return."""
        return self._example

    def rand(
        self,
        shape: ShapeLike = (),
        *,
        generator: torch.Generator | None = None,
        mask: torch.Tensor | None = None,
    ) -> Any:
        """The example as tensordict's NonTensorData; with batch dimensions, a NonTensorStack of it."""
        self._refuse(mask)
        return _stacked(self._example, (*as_shape(shape), *self._shape))

    def zero(self, shape: ShapeLike = ()) -> Any:
        """The same as `rand`: there is no zero of an object."""
        return _stacked(self._example, (*as_shape(shape), *self._shape))

    def project(self, value: Any) -> Any:
        """The value itself."""
        return value

    @property
    def domain(self) -> None:
        """None: there are no tensors."""
        return

    def one(self, shape: ShapeLike = ()) -> Any:
        """The same as `rand`: there is no one of an object."""
        return self.zero(shape)

    def type_check(self, value: Any, key: NestedKey = "") -> None:
        """Any object is of the right type."""

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """The object as tensordict's NonTensorData."""
        return val if hasattr(val, "batch_size") else tensordict().NonTensorData(data=val, batch_size=self._shape)

    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """The object in a NonTensorData, or the list of those in a NonTensorStack."""
        return val.tolist() if hasattr(val, "tolist") else val

    def _twin(self) -> Self:
        return self._rebuilt()

    def _mapped(self, change: Change) -> Self:
        return self._rebuilt(shape=change(torch.empty(self._shape, device="meta")).shape)

    def __getitem__(self, index: Any) -> Self:
        return self._part(index)

    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "NonTensor", (), {"example_data": self._example}

    def _fault(self, value: Any, *, batched: bool) -> Fault | None:
        return None

    def _rebuilt(
        self,
        *,
        shape: tuple[int, ...] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        return type(self)(self._shape if shape is None else shape, device or self._device, dtype, self._example)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NonTensor):
            return NotImplemented
        return (self._shape, self._device) == (other._shape, other._device)

    def __hash__(self) -> int:
        return hash((NonTensor, self._shape))

    def __repr__(self) -> str:
        return f"NonTensor(shape={shape_text(self._shape)}, example_data={self._example!r})"


def _stacked(example: Any, shape: tuple[int, ...]) -> Any:
    if not shape or 0 in shape:
        return tensordict().NonTensorData(data=example, batch_size=shape)
    return tensordict().NonTensorStack(*(_stacked(example, shape[1:]) for _ in range(shape[0])))
