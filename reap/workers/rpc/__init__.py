"""Workers reached by torch.distributed.rpc: they call the collector's process, which only answers."""
