"""Agents of torch's RPC: whether this process has one, and one of the user's own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import rpc

PATIENCE = 60.0


def has_agent() -> bool:
    """Whether RPC has been initialised here, by whomever."""
    try:
        rpc.get_worker_info()
    except RuntimeError:  # torch has no other way to ask
        return False
    return True


@contextmanager
def users_agent(folder: Path, world_size: int | None, timeout: float) -> Generator[None]:
    """This process has an agent in the `with` block; calls end after `timeout` seconds, its start and end may take longer."""
    limit: Any = rpc
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TP_SOCKET_IFNAME", "lo")
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/store", rpc_timeout=PATIENCE)
        rpc.init_rpc("me", rank=0, world_size=world_size, rpc_backend_options=options)
        try:
            limit._set_rpc_timeout(timeout)
            yield
        finally:
            limit._set_rpc_timeout(PATIENCE)
            rpc.shutdown()
