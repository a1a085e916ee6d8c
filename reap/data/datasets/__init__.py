"""Recorded runs in folders, their episodes, and conversion to and from Minari data sets."""
