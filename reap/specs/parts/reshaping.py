"""`Reshaping`: changes the dimensions of a spec, by the methods that tensors have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch

from reap.errors import OptionError

Change = Callable[[torch.Tensor], torch.Tensor]
"""Changes the leading dimensions of a tensor that starts with the spec's shape, and leaves the others unchanged."""


class Reshaping(ABC):
    """Derives specs of other shapes. The dimensions of a Composite are those that all its leaves start with."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """The shape of one value."""

    @property
    def ndim(self) -> int:
        """The number of dimensions of `shape`."""
        return len(self.shape)

    def ndimension(self) -> int:
        """The same as `ndim`."""
        return self.ndim

    @abstractmethod
    def _mapped(self, change: Change) -> Self:
        """The spec of values whose leading dimensions are changed."""

    def unsqueeze(self, dim: int) -> Self:
        """The spec with a dimension of size 1 inserted at `dim`.

        Raises:
            OptionError: there is no such position, or it is after the dimension of the choices.
        """
        return self._viewed("unsqueeze", lambda t: t.unsqueeze(dim))

    def squeeze(self, dim: int | None = None) -> Self:
        """The spec without the dimension `dim` if its size is 1, or without all dimensions of size 1."""
        return self._viewed("squeeze", lambda t: t.squeeze() if dim is None else t.squeeze(dim))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """The spec with the dimensions from `start_dim` to `end_dim` merged into one."""
        return self._viewed("flatten", lambda t: t.flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Iterable[int]) -> Self:
        """The spec with the dimension `dim` split into several."""
        several = tuple(sizes)
        return self._viewed("unflatten", lambda t: t.unflatten(dim, several))

    def reshape(self, *shape: int | Iterable[int]) -> Self:
        """The spec with its elements in another shape.

        Args:
            shape: the new shape, as numbers or as one tuple; one of them may be -1.

        Raises:
            OptionError: it has another number of elements, or the dimension that holds the choices would change.

        Example:
            >>> from reap.specs import Bounded, OneHot
            >>> Bounded(-1, 1, shape=(2, 3)).reshape(3, 2).shape, OneHot(4).expand(6, 4).reshape(2, 3, 4).shape
            (torch.Size([3, 2]), torch.Size([2, 3, 4]))
        """
        sizes: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Iterable) else shape
        return self._viewed("reshape", lambda t: t.reshape(tuple(sizes)))

    def view(self, *shape: int | Iterable[int]) -> Self:
        """The same as `reshape`."""
        return self.reshape(*shape)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The specs of the parts of a value along a dimension."""
        place = range(self.ndim)[dim] if -self.ndim <= dim < self.ndim else None
        if place is None:
            raise OptionError(f"{type(self).__name__}.unbind: expected a dimension of shape {tuple(self.shape)}, found {dim}.")
        lead = (slice(None),) * place
        return tuple(self._part((*lead, number)) for number in range(self.shape[place]))

    def _part(self, index: Any) -> Self:
        """The spec of the part of a value at an index."""
        places = index if isinstance(index, tuple) else (index,)
        if any(place is Ellipsis for place in places):
            at = next(number for number, place in enumerate(places) if place is Ellipsis)
            used = sum(place is not None and place is not Ellipsis for place in places)
            places = (*places[:at], *(slice(None),) * (self.ndim - used), *places[at + 1 :])
        return self._mapped(lambda t: t[places])

    def _viewed(self, name: str, change: Change) -> Self:
        """The spec in the shape that a tensor of the spec's own shape has after a change that keeps its elements in order."""
        lead = self.ndim

        def derived() -> Self:
            shape = change(torch.empty(self.shape, device="meta")).shape
            return self._mapped(lambda t: t.reshape((*shape, *t.shape[lead:])))

        return self._tried(name, derived)

    def _tried(self, name: str, derived: Callable[[], Self]) -> Self:
        try:
            return derived()
        except (IndexError, RuntimeError, TypeError) as error:
            text = str(error).partition("\n")[0]
            raise OptionError(
                f"{type(self).__name__} of shape {tuple(self.shape)}, {name}: expected arguments that a tensor of this shape "
                f"takes, found others: {text}"
            ) from None
