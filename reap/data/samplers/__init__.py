"""Samplers: they choose the frames of samples."""
