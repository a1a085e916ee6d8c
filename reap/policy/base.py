"""`Actor`: the interface to policies of all kinds; and writers of their outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from reap.errors import SpecMismatch
from reap.keys import Key, plain
from reap.recording.buffers import Slot
from reap.recording.layout import Field
from reap.specs.faults import layout_text
from reap.specs.tensor_fits import tensor_as_dtype, unreadable_error

Outputs = Mapping[Key, Any]


class Actor(Protocol):
    """Reads the stage, writes the action and every other output of its policy into a column of the slot.

    Attributes:
        outputs: its outputs, one row's shape and dtype under each key of the slot.
        act: writes the outputs of column `t`.
    """

    outputs: Mapping[Key, Field]
    act: Callable[[int], None]

    def bind(self, slot: Slot) -> None:
        """Bind the slot that later calls write to."""
        ...


class PolicyActor(Actor, Protocol):
    """An actor that runs a policy given by the user.

    Attributes:
        kind: "plain", "tensordict" or "unwrapped", as `repr(collector)` shows it.
        reads: keys of the stage that are passed to the policy.
        writer: writes its outputs.
        enables_grad: the policy differentiates inside its forward, which inference mode would prevent.
    """

    kind: str
    reads: Sequence[Key]
    writer: OutputWriter
    enables_grad: bool

    def probe(self) -> Outputs:
        """Call the policy once on the stage and return its outputs, without writing them."""
        ...

    def fix_outputs(self, writer: OutputWriter) -> None:
        """Set the writer of the outputs that the probe found."""
        ...

    def read_copies(self) -> None:
        """Pass copies of the inputs to the policy from now on, because it keeps them."""
        ...


class OutputWriter:
    """Writes the outputs of one column into the slot, as torch copies them; outputs that are missing this time are zero.

    Args:
        outputs: one row's shape and dtype under each key of the slot.
    """

    def __init__(self, outputs: Mapping[Key, Field]) -> None:
        self.outputs = outputs
        self.forms: list[tuple[torch.Size, torch.dtype]] = []
        """Required shape and dtype of each output; none here."""
        self.keys = tuple(outputs)
        self.views: list[Sequence[torch.Tensor]] = []

    def bind(self, slot: Slot) -> None:
        """Bind the slot that later calls write to."""
        self.views = [slot.views(key) for key in self.keys]

    def write(self, t: int, values: Outputs) -> None:
        """Write column `t`."""
        for key, views in zip(self.keys, self.views, strict=True):
            value = values.get(key)
            if value is None:
                views[t].zero_()
            else:
                views[t].copy_(torch.as_tensor(value))


class StrictWriter(OutputWriter):
    """Writes outputs that have the shapes and dtypes of the policy's first call.

    Args:
        outputs: one row's shape and dtype under each key of the slot.
        batch_shape: batch dimensions of the rows.
        one_hot: keys of choices that may come in any dtype, as exact zeros and ones.
        policy: the name of the policy in errors.
        whole: keys of values that may come as whole numbers of any dtype.
    """

    def __init__(
        self,
        outputs: Mapping[Key, Field],
        batch_shape: tuple[int, ...],
        one_hot: Collection[Key],
        policy: str,
        whole: Collection[Key] = (),
    ) -> None:
        super().__init__(outputs)
        self.forms = [(torch.Size((*batch_shape, *field.shape)), field.dtype) for field in outputs.values()]
        self._one_hot, self._whole, self._policy = frozenset(one_hot), frozenset(whole), policy

    def write(self, t: int, values: Outputs) -> None:
        """Write column `t`.

        Raises:
            SpecMismatch: an output is missing or new, or has another shape or dtype than in the first call.
        """
        if values.keys() != self.outputs.keys():
            raise self.other_keys(values).at(f"column {t}")
        for place, key in enumerate(self.keys):
            value, (shape, dtype) = values[key], self.forms[place]
            if type(value) is not torch.Tensor or value.dtype is not dtype or value.shape != shape:
                value = self._fitting(value, place, t)
            try:
                self.views[place][t].copy_(value)
            except RuntimeError as error:
                raise self.uncopied(value, place, t, error) from None

    def uncopied(self, value: torch.Tensor, place: int, t: int, error: Exception) -> Exception:
        """The error for an output whose shape and dtype fit and that could not be copied."""
        return self._unreadable(value, place, t) or error

    def _unreadable(self, value: Any, place: int, t: int) -> SpecMismatch | None:
        """The error for an output that is not a dense tensor with values; None for one that is, or is not a tensor."""
        error = unreadable_error(value, f"{self._policy}: output {plain(self.keys[place])!r}")
        return error and error.at(f"column {t}")

    def other_keys(self, found: Iterable[Key]) -> SpecMismatch:
        """The error for outputs that disappear or appear."""
        expected, names = list(map(plain, self.keys)), list(map(plain, found))
        return SpecMismatch(
            f"{self._policy}: expected outputs {expected}, as in its first call, found {names}; return the same keys each time"
        )

    def _fitting(self, value: Any, place: int, t: int) -> torch.Tensor:
        key, (shape, dtype) = self.keys[place], self.forms[place]
        expected = f"{layout_text(shape, dtype)}, as in its first call"
        unreadable = self._unreadable(value, place, t)
        if unreadable:
            raise unreadable
        try:
            tensor = as_number(value)
        except (TypeError, ValueError, RuntimeError):
            text = f"{self._policy}: output {plain(key)!r}: expected {expected}, found {type(value).__name__}"
            raise SpecMismatch(text).at(f"column {t}") from None
        is_same = tensor.dtype == dtype or (key in self._one_hot and bool(((tensor == 0) | (tensor == 1)).all()))
        is_whole = key in self._whole and not tensor.is_floating_point()
        if is_whole or isinstance(value, bool | int | float):  # numbers have no dtype of their own
            is_same |= tensor_as_dtype(tensor, dtype) is not None
        if tensor.shape == shape and is_same:
            return tensor
        text = f"{self._policy}: output {plain(key)!r}: expected {expected}, found {layout_text(tensor.shape, tensor.dtype)}"
        raise SpecMismatch(text).at(f"column {t}")


def as_number(value: Any) -> torch.Tensor:
    """A value as a tensor; a Python float with all its digits, which torch would cut to those of float32."""
    return torch.as_tensor(value, dtype=torch.float64) if type(value) is float else torch.as_tensor(value)


class RetainedInputs:
    """Detects whether a policy keeps its input tensors, which are overwritten in each column.

    The stage's tensors are reused for each column. A policy that stores one, a view of one or an array over its memory keeps a
    reference to the tensor or its storage.

    Args:
        tensors: its inputs, in a list that is not referenced elsewhere.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors  # not copied: a list of the caller's would count as a reference, now and not later
        self._storages = [tensor.untyped_storage() for tensor in self._tensors]
        self._expected = self._count()

    def _count(self) -> list[int]:
        tensors = [sys.getrefcount(tensor) for tensor in self._tensors]
        return tensors + [torch._C._storage_Use_Count(storage._cdata) for storage in self._storages]  # pyright: ignore[reportPrivateUsage]

    def found(self) -> bool:
        """Whether any input has more references than before the policy was first called."""
        return any(now > before for now, before in zip(self._count(), self._expected, strict=True))
