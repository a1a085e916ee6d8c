"""What runs at the other end of a weight sync scheme, in a process of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def net(value: float, width: int = 3) -> nn.Module:
    """A module whose parameters and buffers all have this value."""
    module = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(value)
    return module


def values(module: nn.Module) -> list[float]:
    """The different values in a module's parameters and buffers."""
    return sorted({value for one in (*module.parameters(), *module.buffers()) for value in one.flatten().tolist()})


def serve(scheme: Any, worker: int, connection: Any) -> None:
    """Receive when told to, and tell what came: whether there was something newer, and the model's values."""
    torch.set_num_threads(1)
    model = net(0.0)
    scheme.init_on_receiver(model_id="policy", model=model, worker_idx=worker)
    connection.send("connecting")
    scheme.connect()
    connection.send(values(model))
    while (timeout := connection.recv()) != "stop":
        try:
            if timeout:
                connection.send("waiting")
            connection.send((scheme.receive(timeout) is not None, values(model)))
        except RuntimeError as error:
            connection.send(f"{type(error).__name__}: {error}")
    scheme.shutdown()
