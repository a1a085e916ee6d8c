"""Runs in folders and data sets: what was recorded, episode by episode, and how it gets into and out of Minari."""
