"""A distributed collector of torchrl's with CartPole: a program that delivers a batch for each line that it reads.

python benchmarks/torchrl_distributed.py RPCDataCollector 2 8 800    # workers, envs of each, frames of each worker's rollout
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ceiling import CartPolePolicy
from tensordict.nn import TensorDictModule


def make_env(envs: int) -> Any:
    from torchrl.envs import GymEnv, SerialEnv

    torch.set_num_threads(1)
    return SerialEnv(envs, partial(GymEnv, "CartPole-v1"))


def make_collector(name: str, workers: int, envs: int, frames: int) -> Any:
    """Torchrl's class of that name, whose batches hold a rollout of each worker."""
    import torchrl.collectors.distributed as theirs

    kind: Any = getattr(theirs, name, None) or getattr(theirs, name.replace("DataCollector", "Collector"))
    policy = TensorDictModule(CartPolePolicy(), in_keys=["observation"], out_keys=["action"])
    options: dict[str, Any] = {"frames_per_batch": workers * frames, "total_frames": 1 << 40}
    if name != "DistributedSyncDataCollector":
        options["sync"] = True
    if name == "RayCollector":
        paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        runtime_env = {"env_vars": {"PYTHONPATH": paths}}
        options["ray_init_config"] = {"address": os.environ["RAY_ADDRESS"], "runtime_env": runtime_env}
        options["remote_configs"] = {"num_cpus": 1, "num_gpus": 0, "memory": 1 << 28}
    else:
        options |= {"launcher": "mp", "tcp_port": free_port()}
    return kind([partial(make_env, envs)] * workers, policy, **options)


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def main() -> None:
    """A batch for each line; what else is printed goes to stderr."""
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = iter(make_collector(sys.argv[1], *map(int, sys.argv[2:])))
        for _ in sys.stdin:
            told.write(f"frames {next(batches).numel()}\n")


if __name__ == "__main__":
    main()
