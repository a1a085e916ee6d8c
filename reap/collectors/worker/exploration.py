"""`BackgroundExploration`: sets how policies choose in a thread's rollouts, and leaves no trace in the process.

tensordict has one interaction type for all threads of a process, and `set_interaction_type` restores the type it found:

    rollout of a thread    |--- RANDOM ---|  restores None
    a loss, meanwhile           |--- DETERMINISTIC ---|  restores RANDOM, which would stay

So a rollout restores the type it found only if its own type is still set. If it found its own type, or if another thread's
type was set when the previous rollout ended, it restores the type from before the thread. Types set by concurrent rollouts in
several threads are never restored: the last rollout with one type restores the type that the first of them found.
"""

from __future__ import annotations

from threading import Lock

from tensordict.nn.probabilistic import InteractionType, interaction_type, set_interaction_type

_changing = Lock()
_under_way: list[BackgroundExploration] = []


class BackgroundExploration:
    """The context of a thread's rollouts; create it before the first of them.

    Args:
        chosen: the interaction type inside the context.

    Attributes:
        type: as given.
        found: the type that the current rollout restores.
    """

    def __init__(self, chosen: InteractionType | None) -> None:
        self.type = chosen
        self._was_replaced = False
        with _changing:
            self._before = self.found = _outside()

    def __enter__(self) -> None:
        with _changing:
            found = _outside()
            self.found = self._before if self._was_replaced or found is self.type else found
            _under_way.append(self)
            _set(self.type)

    def __exit__(self, *_exception: object) -> None:
        with _changing:
            _under_way.remove(self)
            self._was_replaced = interaction_type() is not self.type
            self._put_back(self.found)

    def end(self) -> None:
        """Clean up after the thread: nothing keeps its type."""
        with _changing:
            self._put_back(self._before)

    def _put_back(self, before: InteractionType | None) -> None:
        if interaction_type() is self.type and _rollout_with(self.type) is None:
            _set(before)


def _rollout_with(kind: InteractionType | None) -> BackgroundExploration | None:
    """A thread's rollout in progress that has set this type."""
    return next((one for one in _under_way if one.type is kind), None)


def _outside() -> InteractionType | None:
    """The current type, or the one that follows once the rollout that set it is over."""
    found = interaction_type()
    owner = _rollout_with(found)
    return found if owner is None else owner.found


def _set(kind: InteractionType | None) -> None:
    set_interaction_type(kind).__enter__()  # for good: there is no other call for it
