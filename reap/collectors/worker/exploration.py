"""`BackgroundExploration`: how policies choose in the rollouts of a thread, without a trace in the process afterwards.

tensordict has one interaction type for all threads of a process, and `set_interaction_type` puts back what it found:

    rollout of a thread    |--- RANDOM ---|  puts None back
    a loss, meanwhile           |--- DETERMINISTIC ---|  puts RANDOM back, and it would stay

So a rollout puts back what it found only where its own type is still set. Where it found its own type, or another thread's was
set when the rollout before ended, it puts back the type from before the thread.
"""

from __future__ import annotations

from tensordict.nn.probabilistic import InteractionType, interaction_type, set_interaction_type


class BackgroundExploration:
    """The context of rollouts in a thread; it is made before the first of them.

    Args:
        chosen: the interaction type in the body.
    """

    def __init__(self, chosen: InteractionType | None) -> None:
        self.type = chosen
        self._before = self._found = interaction_type()
        self._was_replaced = False

    def __enter__(self) -> None:
        found = interaction_type()
        self._found = self._before if self._was_replaced or found is self.type else found
        _set(self.type)

    def __exit__(self, *_exception: object) -> None:
        self._was_replaced = interaction_type() is not self.type
        if not self._was_replaced:
            _set(self._found)

    def end(self) -> None:
        """The thread has ended: its type is left to nobody."""
        if interaction_type() is self.type:
            _set(self._before)


def _set(kind: InteractionType | None) -> None:
    set_interaction_type(kind).__enter__()  # for good: there is no other call for it
