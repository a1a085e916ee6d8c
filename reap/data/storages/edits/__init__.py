"""Frames that are overwritten: how data are fitted to them, and which frames become others."""
