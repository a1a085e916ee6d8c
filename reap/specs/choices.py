"""The base of all specs of choices: their numbers of choices, and how several are drawn at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch

from reap.errors import OptionError
from reap.specs.base import ShapeLike, TensorSpec, as_shape
from reap.specs.drawing import draw
from reap.specs.faults import shape_text

Sizes = Sequence[int] | Sequence[Sequence[int]] | torch.Tensor


class ChoiceSpec(TensorSpec):
    """Choices drawn together: `_sizes` says among how many each one is.

    `_lead` is the shape in front of the dimensions that hold one set of choices.
    """

    _sizes: tuple[int, ...]

    @property
    @abstractmethod
    def _lead(self) -> tuple[int, ...]: ...

    def _draw(
        self, shape: ShapeLike, generator: torch.Generator | None, mask: torch.Tensor | None
    ) -> tuple[torch.Size, torch.Tensor]:
        batch = as_shape(shape)
        lead = (*batch, *self._lead)
        indices = draw(self._sizes, lead, device=self._device, generator=generator, mask=mask)
        return torch.Size((*batch, *self._shape)), indices


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
