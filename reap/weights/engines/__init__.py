"""Weights between two processes by the engines that reach other machines: torch.distributed, and its RPC."""
