"""Policies: actors, which call them, and their contents."""
