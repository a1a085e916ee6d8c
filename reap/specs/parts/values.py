"""`Values`: makes, checks and converts values of a spec, and enumerates them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from reap.errors import OptionError, SpecMismatch
from reap.keys import NestedKey
from reap.specs.parts.torchrl import introduce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reap.specs.parts.arguments import ShapeLike


class Values(ABC):
    """Methods that build on a spec's `rand`, `is_in` and `validate`."""

    if TYPE_CHECKING:

        def rand(self, shape: ShapeLike = ()) -> Any: ...  # noqa: D102
        def is_in(self, value: Any) -> bool: ...  # noqa: D102
        def validate(self, value: Any, *, batched: bool = False) -> None: ...  # noqa: D102
        def to(self, dest: Any) -> Self: ...  # noqa: D102

    @property
    @abstractmethod
    def domain(self) -> str | None:
        """`"discrete"`, `"continuous"` or `"composite"`; None if values are not tensors."""

    def sample(self, shape: ShapeLike = ()) -> Any:
        """The same as `rand`."""
        return self.rand(shape)

    @abstractmethod
    def one(self, shape: ShapeLike = ()) -> Any:
        """Ones of shape `(*shape, *self.shape)`: a filler that need not be in the spec."""

    def ones(self, shape: ShapeLike = ()) -> Any:
        """The same as `one`."""
        return self.one(shape)

    def contains(self, item: Any) -> bool:
        """The same as `is_in`."""
        return self.is_in(item)

    def assert_is_in(self, value: Any) -> None:
        """Raise unless the value, with or without batch dimensions in front, is in the spec.

        Raises:
            SpecMismatch: it is not; the text says why.
        """
        self.validate(value, batched=True)

    @abstractmethod
    def type_check(self, value: Any, key: NestedKey = "") -> None:
        """Raise unless the value has the spec's dtype.

        Raises:
            SpecMismatch: it has another one; the text names the key.
        """

    @abstractmethod
    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """A simulator's value (numbers, lists, arrays, indices of choices) as a value of the spec.

        Args:
            val: the value, with or without batch dimensions in front.
            ignore_device: leave the result where torch makes it, instead of on the spec's device.

        Raises:
            SpecMismatch: its shape does not end with the spec's, or there is no such choice.
        """

    @abstractmethod
    def to_numpy(self, val: Any, safe: bool | None = None) -> Any:
        """A value of the spec in the form that a simulator takes: an array, or the indices of choices.

        Args:
            val: the value.
            safe: raise SpecMismatch for a value that is not in the spec.
        """

    def cardinality(self) -> int | float:
        """The number of values that one element may have.

        For a MultiCategorical or Composite, of all choices together; for numbers, infinity.
        """
        return float("inf")

    def enumerate(self, use_mask: bool = False) -> Any:
        """All values that one element may have, each filling the spec's shape: `[cardinality, *shape]`.

        Args:
            use_mask: leave out those that the spec's mask forbids.

        Raises:
            OptionError: they are not choices, or the mask differs among the elements.
        """
        raise OptionError(
            f"{type(self).__name__}.enumerate: expected a spec of choices, found {self!r}, which has infinitely many values."
        )

    @abstractmethod
    def _twin(self) -> Self:
        """A copy of this spec."""

    def clone(self) -> Self:
        """A copy of this spec; changes to one do not affect the other."""
        introduce()
        return self._twin()

    def cpu(self) -> Self:
        """The spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | str | torch.device | None = None) -> Self:
        """The spec on a CUDA device, by default the current one."""
        place = "cuda" if device is None else torch.device("cuda", device) if isinstance(device, int) else device
        return self.to(place)

    def clear_device_(self) -> Self:
        """The spec itself; a Composite forgets the device that it moves new entries to."""
        return self


def encoded(val: Any, shape: torch.Size, dtype: torch.dtype, device: torch.device | None, owner: str) -> torch.Tensor:
    """Numbers as a tensor whose shape ends with `shape`; a missing last dimension of size 1 is added.

    Raises:
        SpecMismatch: the shape ends differently, or these are not numbers.
    """
    try:
        given = val if isinstance(val, torch.Tensor) else torch.as_tensor(np.asarray(val))
    except (TypeError, ValueError, RuntimeError):
        raise SpecMismatch(f"{owner}.encode: expected numbers, found a {type(val).__name__}: {val!r}.") from None
    value = given.to(device=device, dtype=dtype)
    lead = value.ndim - len(shape)
    if lead >= 0 and value.shape[lead:] == shape:
        return value
    if value.numel() == shape.numel() and value.ndim < len(shape):
        return value.reshape(shape)
    raise SpecMismatch(
        f"{owner}.encode: expected a value whose shape ends with {tuple(shape)}, found shape {tuple(value.shape)}."
    )


def as_array(val: torch.Tensor) -> Any:
    """A tensor as an array on the host."""
    return val.detach().cpu().numpy()


def encoded_tree(specs: Mapping[str, Any], vals: Any, owner: str, *, ignore_device: bool) -> dict[str, Any]:
    """The entries of a dict or TensorDict, each as its spec encodes it.

    Raises:
        SpecMismatch: an entry has no spec.
    """
    unknown = [name for name in vals.keys() if specs.get(name) is None]
    if unknown:
        raise SpecMismatch(f"{owner}.encode: expected entries among {list(specs)}, found {unknown}.")
    return {name: specs[name].encode(val, ignore_device=ignore_device) for name, val in vals.items()}
