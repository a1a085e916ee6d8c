"""Workers that are reached by torch.distributed.rpc: they call the collector's process, which is called and never calls."""
