"""A program: updates modules and a collector in another process of its RPC group, and prints what became of them.

A program of its own, because torch cannot leave a group whose member was killed, and then join another.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule

from reap import SyncDataCollector
from reap.collectors import RemoteModuleWeightUpdater
from reap.collectors.distributed import RPCWeightUpdater
from reap.errors import ClosedError, OptionError, SpecMismatch
from tests.collectors.distributed.policies import Chooser
from tests.weights.receivers import net, values


def join_group(name: str, rank: int, store: str) -> None:
    os.environ["TP_SOCKET_IFNAME"] = "lo"
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}")
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def be_called(store: str) -> None:
    join_group("other", 1, store)
    signal.pause()


def values_there(rref: Any) -> list[float]:
    return values(rref.local_value())


def collector_there() -> Any:
    return SyncDataCollector("CartPole-v1", Chooser(), frames_per_batch=4, track_policy_version=True)


def collect_there(rref: Any) -> tuple[list[int], list[int]]:
    batch = rref.local_value().next()
    return batch["action"].argmax(-1).tolist(), batch["collector", "policy_version"].tolist()


def until(function: Any, expected: Any) -> Any:
    while (found := function()) != expected:
        pass
    return found


def error_of(kind: type[Exception], function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    return "no error"


def module() -> dict[str, Any]:
    remote = rpc.remote("other", net, args=(0.0,))
    updater, source = RemoteModuleWeightUpdater([remote]), net(2.0)
    forms: dict[str, Any] = {
        "a module": source,
        "a TensorDict": TensorDict.from_module(net(3.0)),
        "a state dict": net(4.0).state_dict(),
    }
    found: dict[str, Any] = {}
    for (form, given), expected in zip(forms.items(), (2.0, 3.0, 4.0), strict=True):
        updater.push_weights(given)
        found[form] = until(lambda: rpc.rpc_sync("other", values_there, args=(remote,)), [expected])
    for number in range(5, 100):
        updater.push_weights(net(float(number)))
    found["the latest"] = until(lambda: rpc.rpc_sync("other", values_there, args=(remote,)), [99.0])
    found["another shape"] = error_of(SpecMismatch, updater.push_weights, net(1.0, width=4))
    found["nothing"] = error_of(OptionError, updater.push_weights)
    return found


def remote_module() -> Any:
    remote = RemoteModule("other/cpu", nn.Linear, args=(2, 1))
    RemoteModuleWeightUpdater([remote]).push_weights({"weight": torch.ones(1, 2), "bias": torch.ones(1)})
    return until(lambda: [one.to_here().tolist() for one in remote.remote_parameters()], [[[1.0, 1.0]], [1.0]])


def collector() -> Any:
    remote, policy = rpc.remote("other", collector_there), Chooser()
    updater = RPCWeightUpdater(collector_rrefs=[remote], policy_weights=policy, num_workers=1)
    with torch.no_grad():
        policy.scores.bias.copy_(torch.tensor([0.0, 1e6]))
    updater.push_weights()
    until(lambda: rpc.rpc_sync("other", collect_there, args=(remote,))[0], [1] * 4)
    return rpc.rpc_sync("other", collect_there, args=(remote,))


def gone(process: Any) -> str:
    remote = rpc.remote("other", net, args=(0.0,))
    updater = RemoteModuleWeightUpdater([remote])
    process.kill()
    process.join()

    def push_for_ever() -> None:
        while True:
            updater.push_weights(net(2.0))

    return error_of(ClosedError, push_for_ever)


def main() -> None:
    store = sys.argv[1]
    other = multiprocessing.get_context("spawn").Process(target=be_called, args=(store,), daemon=True)
    other.start()
    join_group("me", 0, store)
    found = {"module": module(), "remote module": remote_module(), "collector": collector(), "gone": gone(other)}
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
