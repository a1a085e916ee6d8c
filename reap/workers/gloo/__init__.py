"""Workers reached by torch.distributed: one gloo process group for each."""
