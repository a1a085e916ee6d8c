"""Folders of storages, and room for what they hold."""
