"""Weight transfer between processes, by engines that reach other machines: torch.distributed, its RPC, and Ray."""
