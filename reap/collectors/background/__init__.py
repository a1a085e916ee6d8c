"""Collecting in a thread, to fill a replay buffer."""
