"""Workers that are reached by torch.distributed: a process group of gloo for each of them."""
