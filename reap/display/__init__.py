"""What a collector does while the loop over its batches runs, in the terminal and on a page in the browser: `progress`."""

from reap.display.loop import progress

__all__ = ["progress"]
