"""`check_collector` over a carrier that shares nothing with its workers: threads that talk by queues, and copied rollouts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import product
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from tensordict.nn import InteractionType
from tensordict.nn.probabilistic import set_interaction_type

from reap.collectors.exchange.copied import CopiedExchange
from reap.collectors.multi import RemoteCollector
from reap.collectors.schedules.make import as_they_come, together
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.testing import check_collector
from reap.testing.collector_checks import FACTS, Fact
from tests.pairwise import each_value
from tests.testing.makers import maker
from tests.workers.threads import thread_group

SCHEDULES = {"together": together, "as they come": as_they_come}


LOCK = Lock()


class OwnGenerator:
    """A handler with a torch generator of its own, as each process has one: threads share the only one of theirs.

    Args:
        handler: the handler.
        seed: of its generator.
    """

    def __init__(self, handler: Any, seed: int) -> None:
        self._handler = handler
        self._state = torch.Generator().manual_seed(seed).get_state()

    def handle(self, command: Any) -> Any:
        with LOCK:
            others = torch.get_rng_state()
            torch.set_rng_state(self._state)
            try:
                return self._handler.handle(command)
            finally:
                self._state = torch.get_rng_state()
                torch.set_rng_state(others)

    def close(self) -> None:
        self._handler.close()


def with_own_generator(make_handler: Any, seed: int, worker: int, control: Any) -> OwnGenerator:
    return OwnGenerator(make_handler(worker, control), seed + worker)


def make_group(make_handlers: Any, **options: Any) -> Any:
    seed = torch.initial_seed()
    return thread_group([partial(with_own_generator, make, seed) for make in make_handlers], **options)


class Threaded(RemoteCollector):
    """A collector whose workers are threads."""

    def __init__(self, create_env_fn: Any, policy: Any, *, schedule: str, **options: Any) -> None:
        # One exchange for each collector: it holds the workers' mailboxes.
        make = partial(RolloutWorkers, exchange=CopiedExchange(), make_group=make_group)
        made, shared = SCHEDULES[schedule], schedule == "together"
        self._compose(create_env_fn, policy, options, made, is_shared=shared, make_workers=make)


@pytest.fixture(autouse=True)
def one_mode() -> Iterator[None]:
    """tensordict's mode is one for all threads: each sets, and restores, the same. So are generators."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002  the global one
    with set_interaction_type(InteractionType.RANDOM):
        yield
    # Workers seed the generators of their process, which is this one.
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002  the global one
    random.setstate(states[2])


@pytest.mark.parametrize(
    ("schedule", "fact"), each_value(product(SCHEDULES, FACTS)), ids=lambda value: getattr(value, "__name__", None)
)
def test_collectors_over_any_carrier_keep_every_fact(schedule: str, fact: Fact) -> None:
    check_collector(maker(Threaded, schedule=schedule, num_sub_threads=None), [fact])
