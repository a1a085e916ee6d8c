"""Overwriting frames: fits data to them, and finds frames that are replaced by others."""
