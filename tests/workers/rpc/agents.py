"""Whether this process has an agent of torch's RPC."""

from __future__ import annotations

from torch.distributed import rpc


def has_agent() -> bool:
    """Whether RPC has been initialised here, by whomever."""
    try:
        rpc.get_worker_info()
    except RuntimeError:  # torch has no other way to ask
        return False
    return True
