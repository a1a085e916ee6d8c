"""Specs of numbers: between bounds, or any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from reap.errors import OptionError
from reap.specs.drawing import uniform_floats, uniform_integers
from reap.specs.faults import Fault, comparable, dtype_name, first_index, range_fault, shape_text
from reap.specs.parts.arguments import DeviceLike, DTypeLike, ShapeLike, as_dtype, as_shape
from reap.specs.parts.reshaping import Change
from reap.specs.spaces import ContinuousBox
from reap.specs.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_SHOWN = 6


class _Numbers(TensorSpec):
    """The base of Bounded and Unbounded: every element is between its two bounds."""

    _space: ContinuousBox

    @property
    def space(self) -> ContinuousBox:
        """The bounds, as `low` and `high`."""
        return self._space

    @property
    def low(self) -> torch.Tensor:
        """The least value of each element, of the spec's shape and dtype."""
        return self._space.low

    @property
    def high(self) -> torch.Tensor:
        """The greatest value of each element, of the spec's shape and dtype."""
        return self._space.high

    def rand(
        self,
        shape: ShapeLike = (),
        *,
        generator: torch.Generator | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Uniform between the bounds, both included for whole numbers.

        A float with one bound is exponential away from it; a float without bounds is normal.
        """
        self._refuse(mask)
        size = (*as_shape(shape), *self._shape)
        if self._dtype.is_floating_point:
            return uniform_floats(self.low, self.high, size, generator)
        return uniform_integers(comparable(self.low), comparable(self.high), size, generator).to(self._dtype)

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        low, high = self.low.to(value.device), self.high.to(value.device)
        if self._dtype.is_floating_point:
            # Compared as the wider of the two dtypes, then cast: rounding cannot leave the bounds, it keeps order.
            return value.clamp(low, high).to(self._dtype)
        least, most = comparable(low), comparable(high)
        if not value.dtype.is_floating_point:
            return comparable(value).clamp(least, most).to(self._dtype)
        # Not clamp, then cast: the ends of int64 are no floats. Elements that overflow in the cast are replaced after it.
        whole = value.round().to(torch.int64)
        return torch.where(value >= most, most, torch.where(value <= least, least, whole)).to(self._dtype)

    def _content_fault(self, value: torch.Tensor) -> Fault | None:
        return range_fault(value, self.low, self.high)


class Bounded(_Numbers):
    """Numbers between bounds that are both included.

    Args:
        low: the smallest value, one for all elements or one for each.
        high: the largest value, likewise.
        shape: the shape of a value; None: that of the bounds.
        device: where values are made.
        dtype: torch.float32 by default, whatever the dtype of the bounds.
        domain: `"continuous"` or `"discrete"`, the kind of dtype that is required; None accepts either.

    Raises:
        OptionError: a bound is missing, NaN, or cannot be held by the dtype; `low` is above `high`; the shape is neither given
            nor implied by the bounds, or does not fit them.

    Example:
        >>> spec = Bounded(-1, 1, shape=3)
        >>> spec
        Bounded(low=-1.0, high=1.0, shape=(3,), dtype=float32)
        >>> spec.project(torch.tensor([-7.0, 0.5, 7.0]))
        tensor([-1.0000,  0.5000,  1.0000])
        >>> spec.is_in(torch.tensor([-7.0, 0.5, 7.0]))
        False
    """

    def __init__(
        self,
        low: float | torch.Tensor | NDArray[np.generic],
        high: float | torch.Tensor | NDArray[np.generic],
        shape: ShapeLike | None = None,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        *,
        domain: str | None = None,
    ) -> None:
        kind = as_dtype(dtype)
        _require_domain(domain, kind, "Bounded")
        least, most = _bound(low, "low", kind), _bound(high, "high", kind)
        size = _common_shape(least, most, shape)
        super().__init__(size, device, kind)
        crossed = (comparable(least) > comparable(most)).expand(size)
        if bool(crossed.any()):
            index = first_index(crossed)
            raise OptionError(
                f"Bounded: expected low <= high, found low {least.expand(size)[index].item()} and "
                f"high {most.expand(size)[index].item()} at index {index}."
            )
        ends = [_compact(bound).to(self._device).expand(size) for bound in (least, most)]
        self._assign(_space=ContinuousBox(*ends))

    def _like(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(self.low, self.high, shape, device, dtype)

    def _mapped(self, change: Change) -> Self:
        low, high = change(self.low), change(self.high)
        return type(self)(low, high, low.shape, self._device, self._dtype)

    def _register_batch_size(self, batch_size: torch.Size) -> None:
        """Called by a torchrl Composite that takes in the spec, which then stores equal bounds only once."""

    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "Bounded", (self.low.clone(), self.high.clone()), {"dtype": self._dtype}

    def __repr__(self) -> str:
        return self._text(f"low={_shown(self.low)}", f"high={_shown(self.high)}")


class Unbounded(_Numbers):
    """Any numbers that the dtype holds, except NaN.

    Args:
        shape: the shape of a value.
        device: where values are made.
        dtype: torch.float32 by default.
        domain: `"continuous"` or `"discrete"`, the kind of dtype that is required; None accepts either.

    Example:
        >>> Unbounded((2, 3)).zero((4,)).shape
        torch.Size([4, 2, 3])
        >>> Unbounded(3, dtype=torch.uint8).space.high
        tensor([255, 255, 255], dtype=torch.uint8)
    """

    def __init__(
        self,
        shape: ShapeLike = (1,),
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
        *,
        domain: str | None = None,
    ) -> None:
        super().__init__(shape, device, dtype)
        _require_domain(domain, self._dtype, "Unbounded")
        low, high = _limits(self._dtype)
        ends = [torch.tensor(end, dtype=self._dtype, device=self._device).expand(self._shape) for end in (low, high)]
        self._assign(_space=ContinuousBox(*ends))

    def _like(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Self:
        return type(self)(shape, device, dtype)

    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "Unbounded", (), {"dtype": self._dtype}

    def __repr__(self) -> str:
        return self._text()


def _require_domain(domain: str | None, dtype: torch.dtype, owner: str) -> None:
    own = "continuous" if dtype.is_floating_point else "discrete"
    if domain not in {None, own}:
        raise OptionError(
            f"{owner}: expected domain {own!r} for dtype {dtype_name(dtype)}, found {domain!r}. Give another dtype."
        )


def _limits(dtype: torch.dtype) -> tuple[float, float] | tuple[int, int]:
    if dtype.is_floating_point:
        return -torch.inf, torch.inf
    if dtype == torch.bool:
        return 0, 1
    if dtype.is_complex or dtype == torch.uint64:
        raise OptionError(
            f"dtype: expected a real dtype that torch can compute with, found {dtype_name(dtype)}. "
            "Wrap the env so that it gives torch.int64 or torch.float32."
        )
    info = torch.iinfo(dtype)
    return info.min, info.max


def _bound(given: float | torch.Tensor | NDArray[np.generic] | None, name: str, dtype: torch.dtype) -> torch.Tensor:
    """One bound as a tensor of its own, of the spec's dtype, on the CPU.

    Infinity becomes the end of a dtype of whole numbers.
    """
    least, most = _limits(dtype)
    if given is None:
        raise OptionError(f"Bounded: expected low and high, found no {name}. If there is no bound, use Unbounded.")
    exact = given.detach().cpu() if isinstance(given, torch.Tensor) else torch.from_numpy(np.array(given))
    if exact.dtype.is_floating_point and bool(exact.isnan().any()):
        raise OptionError(f"Bounded: expected {name} to be a number, found NaN at index {first_index(exact.isnan())}.")
    if dtype.is_floating_point:
        return exact.to(dtype, copy=True)
    wanted = comparable(exact)
    whole = wanted.nan_to_num(0.0, 0.0, 0.0).to(torch.int64)
    whole = torch.where(wanted == torch.inf, most, torch.where(wanted == -torch.inf, least, whole))
    wrong = ((whole != wanted) & ~wanted.isinf()) | (whole < least) | (whole > most)
    if bool(wrong.any()):
        number = wanted[first_index(wrong)].item()
        raise OptionError(
            f"Bounded: expected {name} to be a whole number in [{least}, {most}] for dtype {dtype_name(dtype)}, "
            f"found {number}. Give another bound or dtype."
        )
    return whole.to(dtype)


def _common_shape(low: torch.Tensor, high: torch.Tensor, shape: ShapeLike | None) -> torch.Size:
    if shape is None and low.ndim == 0 and high.ndim == 0:
        raise OptionError("Bounded: expected a shape, as both bounds are single numbers; found none. Give shape=().")
    sizes = (tuple(low.shape), tuple(high.shape)) + (() if shape is None else (tuple(as_shape(shape)),))
    try:
        common = torch.broadcast_shapes(*sizes)
    except RuntimeError:
        common = None
    if common is None or (shape is not None and common != as_shape(shape)):
        given = "" if shape is None else f" and shape {shape_text(as_shape(shape))}"
        raise OptionError(
            f"Bounded: expected bounds that broadcast to one shape, "
            f"found low of shape {sizes[0]}, high of shape {sizes[1]}{given}."
        )
    return torch.Size(common)


def _compact(bound: torch.Tensor) -> torch.Tensor:
    """The bound as one number where it is the same for all elements."""
    same = bound.numel() > 1 and bool((bound == bound.flatten()[0]).all())
    return bound.flatten()[0].clone() if same else bound


def _shown(bound: torch.Tensor) -> str:
    if bound.numel() == 0:
        return "[]"
    numbers = comparable(bound)
    least, most = numbers.min().item(), numbers.max().item()
    if least == most:
        return _short(least)
    if bound.ndim == 1 and len(bound) <= _MOST_SHOWN:
        return f"[{', '.join(_short(number) for number in numbers.tolist())}]"
    return f"{_short(least)}..{_short(most)}"


def _short(number: float) -> str:
    """Six digits, because 4.8 in float32 is 4.800000190734863."""
    return str(float(f"{number:.6g}")) if isinstance(number, float) else str(number)
