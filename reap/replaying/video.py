"""`Video`: writes frames of an env to an MP4 file one by one, so that long episodes take no memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from reap.errors import OptionError
from reap.optional import load

CODEC = "libx264"


class Video:
    """A video file to which frames are written in a `with` block; an exception in the block removes the file.

    Args:
        path: the file, which must not exist; its folder must.
        fps: frames per second.

    Raises:
        OptionError: the path cannot be written to, or does not end with `.mp4`.
        ImportError: imageio or PyAV is not installed.
    """

    def __init__(self, path: Path, fps: float) -> None:
        if path.suffix != ".mp4":
            raise OptionError(f"video: expected the name of an .mp4 file, got {path}")
        if path.exists():
            raise OptionError(f"video: {path} exists; nothing is overwritten, name another file")
        if not path.parent.is_dir():
            raise OptionError(f"video: expected a file in a folder that exists, got {path}")
        load("av", "video")
        self._path = path
        self._file = load("imageio.v3", "video").imopen(path, "w", plugin="pyav")
        try:
            self._file.init_video_stream(CODEC, fps=fps)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def write(self, frame: Any) -> None:
        """Append a frame.

        Args:
            frame: `[height, width, 3]` uint8; an odd side is extended by one line, since the codec needs even sizes.
        """
        height, width, _ = frame.shape
        if height % 2 or width % 2:
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        self._file.write_frame(frame)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._file.close()
        finally:
            if kind is not None:  # a file that plays to the middle, or not at all, would be in the way of the next try
                self._path.unlink(missing_ok=True)
