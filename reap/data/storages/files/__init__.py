"""Folders of storages, and checks for free space."""
