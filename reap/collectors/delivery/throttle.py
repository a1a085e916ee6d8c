"""`Throttle`: holds a collector that is too far ahead of the learner.

    written ---------|--- ahead ---|
    learner ---------'             '-- may not go beyond max_frames_ahead: the collector waits until the learner samples

The learner has consumed the frames that it sampled, divided by the number of times each frame is to be sampled.
"""

from __future__ import annotations

import math
import select
import warnings
from collections.abc import Sequence

from reap.collectors.delivery.steps import feeders_of
from reap.collectors.options.collector import CollectorOptions
from reap.errors import OptionError
from reap.system.bell import Bell
from reap.system.native import require_polls

PATIENCE = 60.0
"""Seconds that a collector waits for the learner's first sample before it warns."""


class Throttle:
    """Makes a collector wait for the learner.

    Args:
        limit: maximum number of written frames that the learner has not consumed.
        samples_per_frame: how often each frame is to be sampled.
        step: frames per write.
        warm_up: number of initial frames that need not wait.
        patience: seconds after which a warning says that nothing was sampled; doubled for each further warning.

    Attributes:
        is_holding: the last result of `holds`.
    """

    def __init__(
        self,
        limit: float = math.inf,
        samples_per_frame: float = 1.0,
        step: int = 0,
        warm_up: int = 0,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._limit, self._per_frame, self._step, self._warm_up = limit, samples_per_frame, step, warm_up
        self._patience = patience
        self._sampled = self._start = 0
        self.is_holding = False
        self._also: Sequence[int] = ()
        self._bell: Bell | None = None
        if limit < math.inf:
            require_polls("max_frames_ahead", "start() without it")
            self._bell = Bell()

    def begin(self, frames: int, also: Sequence[int]) -> None:
        """Start counting.

        Args:
            frames: frames written before.
            also: descriptors that end a wait when they are readable.
        """
        self._also, self._sampled = also, 0
        self._start = max(frames, self._warm_up)

    def holds(self, frames: int) -> bool:
        """Whether to wait before writing more than this number of frames."""
        self.is_holding = True  # a sample meanwhile wakes
        ahead = frames + self._step - self._start - self._sampled / self._per_frame
        self.is_holding = ahead > self._limit
        return self.is_holding

    def note_sampled(self, frames: int) -> None:
        """Note that the learner has sampled more frames."""
        self._sampled += frames
        if self.is_holding:
            self.wake()

    def wait(self) -> None:
        """Return immediately if the last answer was not to wait; otherwise wait until something happens."""
        if self._bell is None or not self.is_holding:
            return
        waiting = select.poll()
        for descriptor in (self._bell.fileno(), *self._also):
            waiting.register(descriptor, select.POLLIN)
        ready = waiting.poll(None if self._sampled else 1000 * self._patience)
        if any(descriptor == self._bell.fileno() for descriptor, _ in ready):
            self._bell.clear()
        if not ready:
            warnings.warn(
                f"the collector has waited for {self._patience:g} s: it may be {self._limit} frames ahead of the learner "
                "(max_frames_ahead), and no frame has been sampled yet. A learner that waits for more frames waits forever",
                RuntimeWarning,
                stacklevel=2,
            )
            self._patience *= 2

    def wake(self) -> None:
        """End the current or next wait."""
        if self._bell is not None:
            self._bell.ring()


def make_throttle(options: CollectorOptions, frames_per_batch: int) -> Throttle:
    """The throttle for these options; without them, one that never waits.

    Raises:
        OptionError: fewer frames than a batch holds, or a buffer that does not report its samples.
    """
    limit, buffer = options.max_frames_ahead, options.replay_buffer
    if limit is None:
        return Throttle()
    if limit < frames_per_batch:
        raise OptionError(f"max_frames_ahead: expected at least the {frames_per_batch} frames of a batch, got {limit}")
    if feeders_of(buffer) is None:
        raise OptionError(
            "max_frames_ahead: expected a replay buffer of reap, which says how many frames were sampled from it, got "
            f"{type(buffer).__name__}"
        )
    return Throttle(limit, options.samples_per_frame, frames_per_batch, options.random_frames)
