"""`BackgroundExploration`: how policies choose in the rollouts of a thread, without a trace in the process afterwards.

tensordict has one interaction type for all threads of a process, and `set_interaction_type` puts back what it found:

    rollout of a thread    |--- RANDOM ---|  puts None back
    a loss, meanwhile           |--- DETERMINISTIC ---|  puts RANDOM back, and it would stay

So a rollout puts back what it found only where its own type is still set. Where it found its own type, or another thread's was
set when the rollout before ended, it puts back the type from before the thread. The types of rollouts under way in several
threads are nothing to put back: the last of those with one type puts back what the first of them found.
"""

from __future__ import annotations

from threading import Lock

from tensordict.nn.probabilistic import InteractionType, interaction_type, set_interaction_type

_changing = Lock()
_under_way: list[BackgroundExploration] = []


class BackgroundExploration:
    """The context of rollouts in a thread; it is made before the first of them.

    Args:
        chosen: the interaction type in the body.

    Attributes:
        type: that.
        found: the type that the rollout under way puts back.
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
        """The thread has ended: its type is left to nobody."""
        with _changing:
            self._put_back(self._before)

    def _put_back(self, before: InteractionType | None) -> None:
        if interaction_type() is self.type and _rollout_with(self.type) is None:
            _set(before)


def _rollout_with(kind: InteractionType | None) -> BackgroundExploration | None:
    """The rollout of a thread that has set this type, and is under way."""
    return next((one for one in _under_way if one.type is kind), None)


def _outside() -> InteractionType | None:
    """The type that is set, or will be once the rollout that has set it is over."""
    found = interaction_type()
    owner = _rollout_with(found)
    return found if owner is None else owner.found


def _set(kind: InteractionType | None) -> None:
    set_interaction_type(kind).__enter__()  # for good: there is no other call for it
