"""Saving and loading of buffers."""
