"""Replay buffers, and their parts."""
