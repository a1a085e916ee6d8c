"""`SyncDataCollector`: collects in this process, while the training loop waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from tensordict.nn import InteractionType

from reap.collectors.base import DataCollectorBase
from reap.collectors.delivery.arrangement import Arrangement
from reap.collectors.options.collector import CollectorOptions, SyncOptions, make_options
from reap.collectors.options.generations import with_total_frames
from reap.collectors.options.shown import shows_options
from reap.collectors.parts import Parts
from reap.collectors.schedules.together import Together
from reap.collectors.workers.local import LocalWorkers


@shows_options(_options=CollectorOptions)
class SyncDataCollector(DataCollectorBase):
    """Runs a policy in an env and delivers batches of its experience.

    Args:
        create_env_fn: an env, a factory of one, a gymnasium id or a gymnasium env.
        policy: a module or function, or None for random actions (`env.rand_action` and `env.rand_step` mean the same).
        **options: see `CollectorOptions`; `frames_per_batch` is required.

    Yields:
        TensorDicts `[*env.batch_size, T]`, the last dimension named `"time"`, with `T` the columns that make
        `frames_per_batch` frames.

    Raises:
        OptionError: an option that is unknown or cannot work.
        SpecMismatch: a policy or an env that does not keep to the env's specs.
        MemoryError: a batch does not fit into the available memory.

    Example:
        >>> with SyncDataCollector("CartPole-v1", frames_per_batch=20, total_frames=40) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([20]), torch.Size([20])]
    """

    def __init__(
        self, create_env_fn: Any, policy: Callable[..., Any] | None = None, *total_frames: Any, **options: Unpack[SyncOptions]
    ) -> None:
        chosen = make_options(with_total_frames(options, total_frames), InteractionType)
        workers = LocalWorkers(create_env_fn, policy, chosen)
        info = workers.infos[0]

        def make_schedule(parts: Parts) -> Together:
            return Together(parts, Arrangement([workers.slots], 1, (*info.batch_shape, info.columns), info.frames))

        super().__init__(chosen, workers, make_schedule)
