"""Where `split_trajectories` is documented to be imported from."""

from reap.recording.split import split_trajectories

__all__ = ["split_trajectories"]
