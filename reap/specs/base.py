"""`Spec`: the interface of all specs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch

from reap.errors import OptionError, SpecMismatch
from reap.optional import load
from reap.specs.faults import Fault, message, shape_text
from reap.specs.parts.arguments import (
    Destination,
    ShapeLike,
    as_sizes,
)
from reap.specs.parts.reshaping import Reshaping
from reap.specs.parts.torchrl import KINDS, reason_for
from reap.specs.parts.values import Values

if TYPE_CHECKING:
    from reap.keys import NestedKey


class Spec(Reshaping, Values, ABC):
    """Shape, dtype and range of the values under a key. Immutable.

    `expand`, `to` and the calls that change a tensor's shape give changed specs; a value of a spec may have batch dimensions in
    front of `shape`.
    """

    _shape: torch.Size

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__name__.startswith("_"):
            KINDS.setdefault(cls.__name__, cls)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise AttributeError(reason_for(type(self), name), name=name, obj=self)

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.stack:
                return stacked(*args, **(kwargs or {}))
            return NotImplemented

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"{type(self).__name__}.{name} cannot be set: specs are immutable. Derive a changed one with expand(), "
            "to() or Composite.with_(key, spec), or build a new one."
        )

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    @property
    def shape(self) -> torch.Size:
        """The shape of one value; for a Composite, the shape that all its leaves start with."""
        return self._shape

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype | None:
        """The dtype of the values; None if they are not tensors."""

    @property
    @abstractmethod
    def device(self) -> torch.device | None:
        """The device on which values are made; None if unspecified."""

    @property
    @abstractmethod
    def space(self) -> Any:
        """The range of the values; see `reap.specs.spaces`."""

    @abstractmethod
    def rand(
        self,
        shape: ShapeLike = (),
        *,
        generator: torch.Generator | None = None,
        mask: torch.Tensor | None = None,
    ) -> Any:
        """A random value of shape `(*shape, *self.shape)`.

        Args:
            shape: batch dimensions in front.
            generator: the source of random numbers; torch's own if None.
            mask: which choices are allowed, for specs of choices only.

        Raises:
            OptionError: a mask for a spec without choices.
            SpecMismatch: a mask of a wrong shape, or one that allows nothing.
        """

    @abstractmethod
    def zero(self, shape: ShapeLike = ()) -> Any:
        """Zeros of shape `(*shape, *self.shape)`: a filler that need not be in the spec."""

    def zeros(self, shape: ShapeLike = ()) -> Any:
        """The same as `zero`."""
        return self.zero(shape)

    def is_in(self, value: Any) -> bool:
        """Whether the value, with or without batch dimensions in front, has the spec's layout and range."""
        return self._fault(value, batched=True) is None

    def validate(self, value: Any, *, key: NestedKey = "", where: str = "", batched: bool = False) -> None:
        """Raise unless the value is in the spec; NaN never is.

        Args:
            value: the value to check.
            key: its key, for the error.
            where: the worker, env or call it came from, for the error.
            batched: whether there may be further dimensions in front of the spec's shape.

        Raises:
            SpecMismatch: the text names the key, the expected and the found value, and a remedy if one is known.
        """
        fault = self._fault(value, batched=batched)
        if fault is not None:
            raise SpecMismatch(message(fault, key, where))

    @abstractmethod
    def project(self, value: Any) -> Any:
        """The nearest value in the spec.

        Raises:
            SpecMismatch: the value's shape does not end with the spec's.
        """

    def expand(self, *shape: int | Iterable[int]) -> Self:
        """The spec with dimensions added in front, and dimensions of size 1 widened.

        Args:
            shape: the whole new shape, as numbers or as one tuple; -1 keeps a dimension.

        Raises:
            OptionError: the present shape does not broadcast to it.
        """
        return self._rebuilt(shape=self._expanded_shape(as_sizes(shape)))

    def to(self, dest: Destination) -> Self:
        """The spec on another device, or with another dtype.

        Args:
            dest: a torch.dtype, or a device or its name.

        Raises:
            OptionError: the dtype cannot hold the spec's bounds.
        """
        if isinstance(dest, torch.dtype):
            return self._rebuilt(dtype=dest)
        return self._rebuilt(device=torch.device(dest))

    def as_torchrl(self) -> Any:
        """The spec as one of torchrl's classes, of the same shape, dtype, device and range.

        torchrl's modules and losses take reap's specs as they are; this is for code that asks for the class itself.

        Raises:
            ImportError: torchrl is not installed.

        Example:
            >>> from reap.specs import Bounded
            >>> Bounded(-1, 1, shape=2).as_torchrl().space.high
            tensor([1., 1.])
        """
        data = load("torchrl.data", "spec.as_torchrl()")
        name, arguments, options = self._torchrl_call()
        return getattr(data, name)(*arguments, shape=self._shape, device=self.device, **options)

    @abstractmethod
    def _torchrl_call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The name of torchrl's class, and the arguments for it besides shape and device."""

    @abstractmethod
    def _fault(self, value: Any, *, batched: bool) -> Fault | None:
        """The fault of a value; None if it is in the spec."""

    @abstractmethod
    def _rebuilt(
        self,
        *,
        shape: tuple[int, ...] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """The same spec with the given parts changed."""

    def _assign(self, **fields: object) -> None:
        vars(self).update(fields)

    def _refuse(self, mask: torch.Tensor | None) -> None:
        if mask is not None:
            raise OptionError(
                f"{type(self).__name__}.rand: expected no mask, found one. Masks are for Categorical, OneHot, "
                "MultiCategorical and MultiOneHot; give it to the leaf that it belongs to."
            )

    def _expanded_shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The new shape with each -1 filled in, checked to be one that the present shape broadcasts to."""
        lead = len(sizes) - self.ndim
        own = (-1,) * lead + tuple(self._shape)
        if lead >= 0:
            filled = tuple(old if new == -1 else new for old, new in zip(own, sizes, strict=True))
            if all(new >= 0 and old in {-1, 1, new} for old, new in zip(own, filled, strict=True)):
                return filled
        raise OptionError(
            f"{type(self).__name__}.expand: expected a shape that ends with {shape_text(self._shape)} "
            f"(a dimension of size 1 may grow), found {shape_text(sizes)}."
        )


def stacked(specs: Sequence[Spec], dim: int = 0) -> Spec:
    """The spec of equal specs' values stacked along a new dimension.

    Raises:
        OptionError: they are not equal.
    """
    first = specs[0]
    for number, spec in enumerate(specs):
        if spec != first:
            raise OptionError(
                f"torch.stack: expected equal specs, found {first!r} first and {spec!r} at place {number}. Pad values "
                "to one shape, or put them under keys of their own."
            )
    one = first.unsqueeze(dim)
    place = range(one.ndim)[dim]
    return one.expand(*(len(specs) if number == place else -1 for number in range(one.ndim)))
