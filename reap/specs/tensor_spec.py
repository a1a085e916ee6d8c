"""`TensorSpec`: the base of the specs whose values are tensors."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from reap.errors import SpecMismatch
from reap.specs.base import Spec
from reap.specs.faults import Fault, dtype_name, layout_text, message, shape_text
from reap.specs.parts.arguments import (
    DeviceLike,
    DTypeLike,
    ShapeLike,
    as_device,
    as_dtype,
    as_shape,
    as_tensor,
)
from reap.specs.parts.reshaping import Change
from reap.specs.parts.torchrl import introduce
from reap.specs.parts.values import as_array, encoded
from reap.specs.tensor_fits import NUMBERS, unreadable_kind

if TYPE_CHECKING:
    from reap.keys import NestedKey


class TensorSpec(Spec):
    """A spec whose values are tensors."""

    _dtype: torch.dtype
    _device: torch.device

    def __init__(self, shape: ShapeLike, device: DeviceLike | None, dtype: DTypeLike | None) -> None:
        introduce()
        self._assign(_shape=as_shape(shape), _device=as_device(device), _dtype=as_dtype(dtype))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """The device of new values; those given to `is_in` or `project` may be on another one."""
        return self._device

    @abstractmethod
    def rand(
        self,
        shape: ShapeLike = (),
        *,
        generator: torch.Generator | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A random tensor of shape `(*shape, *self.shape)`; see `Spec.rand`."""

    def zero(self, shape: ShapeLike = ()) -> torch.Tensor:
        """Zeros of shape `(*shape, *self.shape)`: a filler that need not be in the spec."""
        return torch.zeros((*as_shape(shape), *self._shape), dtype=self._dtype, device=self._device)

    def zeros(self, shape: ShapeLike = ()) -> torch.Tensor:
        """The same as `zero`."""
        return self.zero(shape)

    def project(self, value: Any) -> torch.Tensor:
        """The nearest tensor in the spec, with its dtype; NaN becomes 0 first.

        Raises:
            SpecMismatch: the value is not a tensor, or its shape does not end with the spec's.
        """
        tensor = as_tensor(value)
        if tensor is None or not self._fits(tensor.shape, batched=True):
            found = "no tensor" if tensor is None else f"shape {shape_text(tensor.shape)}"
            raise SpecMismatch(
                f"{type(self).__name__}.project: expected a tensor whose shape ends with {shape_text(self._shape)}, "
                f"found {found}."
            )
        if tensor.dtype.is_floating_point:
            tensor = tensor.nan_to_num(0.0, torch.inf, -torch.inf)
        return self._projected(tensor)

    def one(self, shape: ShapeLike = ()) -> torch.Tensor:
        """Ones of shape `(*shape, *self.shape)`: a filler that need not be in the spec."""
        return torch.ones((*as_shape(shape), *self._shape), dtype=self._dtype, device=self._device)

    @property
    def domain(self) -> str:
        """`"discrete"` for choices and whole numbers, else `"continuous"`."""
        return "continuous" if self._dtype.is_floating_point else "discrete"

    def type_check(self, value: Any, key: NestedKey = "") -> None:
        """Raise SpecMismatch unless the value is a tensor of the spec's dtype."""
        tensor = as_tensor(value)
        if tensor is None or tensor.dtype != self._dtype:
            found = f"a {type(value).__name__}" if tensor is None else f"dtype {dtype_name(tensor.dtype)}"
            raise SpecMismatch(message(Fault(f"dtype {dtype_name(self._dtype)}", found), key, ""))

    def encode(self, val: Any, *, ignore_device: bool = False) -> torch.Tensor:
        """Numbers or an array as a tensor of the spec's dtype and device; see `Values`."""
        return encoded(val, self._shape, self._dtype, None if ignore_device else self._device, type(self).__name__)

    def to_numpy(self, val: torch.Tensor, safe: bool | None = None) -> Any:
        """A tensor as an array on the host; see `Values`."""
        if safe:
            self.assert_is_in(val)
        return as_array(val)

    def _twin(self) -> Self:
        return self._rebuilt()

    def _mapped(self, change: Change) -> Self:
        shape = change(torch.empty(self._shape, device="meta")).shape
        return self._like(shape, self._device, self._dtype)

    def __getitem__(self, index: Any) -> Self:
        return self._part(index)

    @abstractmethod
    def _like(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Self:
        """The same spec with another shape, device and dtype."""

    def _rebuilt(
        self,
        *,
        shape: tuple[int, ...] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        return self._like(self._shape if shape is None else shape, device or self._device, dtype or self._dtype)

    @abstractmethod
    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        """The nearest tensor, for one of the right shape without NaN."""

    @abstractmethod
    def _content_fault(self, value: torch.Tensor) -> Fault | None:
        """The fault of the elements of a tensor of the right shape and dtype, if there is one."""

    def _fault(self, value: Any, *, batched: bool) -> Fault | None:
        expected = layout_text(self._shape, self._dtype)
        tensor = as_tensor(value)
        if tensor is None:
            return Fault(f"a tensor of {expected}", f"a {type(value).__name__}", "Make it one with torch.as_tensor().")
        unreadable = unreadable_kind(tensor)
        if unreadable:
            return Fault(NUMBERS, unreadable)
        if tensor.dtype != self._dtype or not self._fits(tensor.shape, batched=batched):
            return Fault(expected, layout_text(tensor.shape, tensor.dtype), self._layout_advice(tensor))
        return self._content_fault(tensor)

    def _fits(self, shape: torch.Size, *, batched: bool) -> bool:
        return shape == self._shape or (batched and shape[max(len(shape) - self.ndim, 0) :] == self._shape)

    def _layout_advice(self, value: torch.Tensor) -> str:
        """A remedy for a tensor of a wrong shape or dtype; empty if none is known."""
        if value.shape != self._shape and value.numel() == self._shape.numel():
            return f"It has as many elements: value.reshape({shape_text(self._shape)}) makes it fit."
        if value.shape == self._shape and value.dtype.is_floating_point and self._dtype.is_floating_point:
            return f"Cast it: value.to({self._dtype}); GymEnv(dtype={self._dtype}) casts an env's float observations."
        if value.shape == self._shape:
            return f"Cast it: value.to({self._dtype})."
        return ""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        same = cast("TensorSpec", other)
        mine = (self._shape, self._dtype, self._device, self.space)
        return mine == (same.shape, same.dtype, same.device, same.space)

    def __hash__(self) -> int:
        return hash((type(self), self._shape, self._dtype))

    def _text(self, *arguments: str) -> str:
        parts = [*arguments, f"shape={shape_text(self._shape)}", f"dtype={dtype_name(self._dtype)}"]
        if self._device.type != "cpu":
            parts.append(f"device={str(self._device)!r}")
        return f"{type(self).__name__}({', '.join(parts)})"
