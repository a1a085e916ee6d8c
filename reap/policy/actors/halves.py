"""`HalvesActor`: calls a policy for two halves of the rows in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from reap.keys import Key
from reap.policy.base import Outputs, OutputWriter, PolicyActor, RetainedInputs
from reap.recording.buffers import Slot, Stage
from reap.recording.layout import Field

Chosen = tuple[PolicyActor, RetainedInputs | None]


class HalvesActor:
    """An actor for each half of the rows, over parts of one stage and one slot.

    Args:
        actors: the actors of the halves.
        stages: the parts of the stage that they read.

    Attributes:
        acts: for each half, the function that writes the outputs of its rows in a column.
    """

    def __init__(self, actors: Sequence[PolicyActor], stages: Sequence[Stage]) -> None:
        self._actors = tuple(actors)
        self._cuts = tuple((stage.first_row, stage.first_row + stage.rows, stage.batch_shape) for stage in stages)
        self.acts: list[Callable[[int], None]] = []
        first = actors[0]
        self.kind, self.reads = first.kind, first.reads
        self.outputs: Mapping[Key, Field] = first.outputs
        self.writer = first.writer
        self.enables_grad = any(actor.enables_grad for actor in actors)

    def probe(self) -> Outputs:
        """Call the policy once, for the first half."""
        return self._actors[0].probe()

    def fix_outputs(self, writer: OutputWriter) -> None:
        """Set the writer of the outputs."""
        self.outputs, self.writer = writer.outputs, writer
        for actor in self._actors:
            actor.fix_outputs(writer)

    def read_copies(self) -> None:
        """Pass copies of the inputs to the policy from now on."""
        for actor in self._actors:
            actor.read_copies()

    def bind(self, slot: Slot) -> None:
        """Bind the slot that later calls write to."""
        for actor, part in zip(self._actors, slot.parts(self._cuts), strict=True):
            actor.bind(part)
        self.kind, self.acts = self._actors[0].kind, [actor.act for actor in self._actors]

    def act(self, t: int) -> None:
        """Write the outputs of column `t`, for one half after the other."""
        for act in self.acts:
            act(t)


def join_halves(chosen: Sequence[Chosen], stages: Sequence[Stage]) -> tuple[PolicyActor, RetainedInputs | None]:
    """Join the actors of two halves, and their checks for retained inputs.

    Args:
        chosen: the result of `choose_actor` for each half.
        stages: the part of the stage that each reads.
    """
    actor = HalvesActor([one for one, _ in chosen], stages)
    if all(kept is not None for _, kept in chosen):
        # Counted again, since neither of the two has counted the other's references.
        return actor, RetainedInputs([stage.tensors[key] for stage in stages for key in actor.reads])
    for one, kept in chosen:
        if kept is not None:
            one.read_copies()
    return actor, None
