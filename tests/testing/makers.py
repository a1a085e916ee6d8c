"""Makes collectors of numbered envs in several workers, for `check_collector` and for comparisons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from reap import GymEnv, SerialEnv

ENVS, WORKERS = 3, 2


def build_row(env_factory: Callable[[int], Any], number: int) -> GymEnv:
    return GymEnv(env_factory(number))


def build_env(env_factory: Callable[[int], Any], worker: int) -> SerialEnv:
    numbers = range(worker * ENVS, (worker + 1) * ENVS)
    return SerialEnv(ENVS, [partial(build_row, env_factory, number) for number in numbers])


def maker(kind: Callable[..., Any], workers: int = WORKERS, **fixed: Any) -> Callable[..., Any]:
    """`make_collector` for `check_collector`: workers with three envs each."""

    def make(env_factory: Callable[[int], Any], policy: Any, **options: Any) -> Any:
        return kind([partial(build_env, env_factory, worker) for worker in range(workers)], policy, **fixed, **options)

    return make
