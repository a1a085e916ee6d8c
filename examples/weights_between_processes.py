"""Weights from a learner to an actor in another process, without a collector.

    python examples/weights_between_processes.py --way rpc            a scheme over torch.distributed.rpc
    python examples/weights_between_processes.py --way distributed    a scheme over torch.distributed
    python examples/weights_between_processes.py --way module         a module in a process of an RPC group of one's own

For another machine, give the scheme the address of the interface by which this one is reached, and bring the pickled scheme
there by any means.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.distributed import rpc

from reap.collectors import RemoteModuleWeightUpdater
from reap.weight_update import DistributedWeightSyncScheme, RPCWeightSyncScheme

UPDATES = 5


def make_policy() -> nn.Linear:
    return nn.Linear(4, 2)


def act(scheme: Any, done: Connection) -> None:
    """The actor: take the newest weights, until the last."""
    policy = make_policy()
    scheme.init_on_receiver(model=policy)
    scheme.connect()
    while policy.bias[0] < UPDATES:
        scheme.receive(timeout=10.0)
    scheme.shutdown()
    done.send(policy.bias.tolist())


def learn_with(scheme: Any) -> list[float]:
    """The learner: send weights, in a loop that never waits."""
    policy = make_policy()
    scheme.init_on_sender(model=policy)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    actor = context.Process(target=act, args=(scheme, there))
    actor.start()
    scheme.connect()
    for update in range(1, UPDATES + 1):
        with torch.no_grad():
            policy.bias.fill_(update)
        scheme.send()
    found = here.recv()
    actor.join()
    scheme.shutdown()
    return found


def join_group(name: str, rank: int, store: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}")
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def wait_in_group(store: str) -> None:
    """The actor's process: it is called."""
    join_group("actor", 1, store)
    rpc.shutdown()


def bias_of(policy: Any) -> list[float]:
    return policy.local_value().bias.tolist()


def learn_with_a_remote_module() -> list[float]:
    """The learner: update a module that another process has."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        actor = multiprocessing.get_context("spawn").Process(target=wait_in_group, args=(store,))
        actor.start()
        join_group("learner", 0, store)
        remote = rpc.remote("actor", make_policy)
        updater, policy = RemoteModuleWeightUpdater([remote]), make_policy()
        for update in range(1, UPDATES + 1):
            with torch.no_grad():
                policy.bias.fill_(update)
            updater.push_weights(policy)
        while (found := rpc.rpc_sync("actor", bias_of, args=(remote,))) != [UPDATES, UPDATES]:
            pass
        del remote, updater
        rpc.shutdown()
        actor.join()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=["rpc", "distributed", "module"], default="rpc")
    way = parser.parse_args().way
    if way == "module":
        found = learn_with_a_remote_module()
    else:
        found = learn_with(RPCWeightSyncScheme() if way == "rpc" else DistributedWeightSyncScheme())
    print(f"the actor has {found}")


if __name__ == "__main__":
    main()
