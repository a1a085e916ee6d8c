"""`Handle`: what a process tells another so that it can map the same memory.

A process number and a descriptor say where to look for it. Both may be somebody else's by then, so that the file's device and
inode say what is to be found there.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from reap.errors import ClosedError


class Handle(NamedTuple):
    """Where shared memory is open, and which it is.

    Attributes:
        pid: the process that holds it open.
        fd: its descriptor there.
        device: the device of the memory's file.
        inode: its number there.
    """

    pid: int
    fd: int
    device: int
    inode: int

    @classmethod
    def of(cls, fd: int) -> Handle:
        """The handle of memory that this process holds open.

        Args:
            fd: its descriptor.
        """
        status = os.fstat(fd)
        return cls(os.getpid(), fd, status.st_dev, status.st_ino)

    def opened(self, what: str) -> int:
        """A descriptor of that memory in this process, which the caller closes.

        Args:
            what: what lies there, for the error.

        Raises:
            ClosedError: the process has ended or closed it, or another memory has its descriptor by now.
        """
        path = f"/proc/{self.pid}/fd/{self.fd}"
        try:
            if not self._is(os.stat(path)):  # before it is opened: that may do something, where it is a device by now
                raise FileNotFoundError(path)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError, PermissionError) as error:
            raise self._gone(what) from error
        if not self._is(os.fstat(fd)):
            os.close(fd)
            raise self._gone(what)
        return fd

    def _is(self, status: os.stat_result) -> bool:
        return (status.st_dev, status.st_ino) == (self.device, self.inode)

    def _gone(self, what: str) -> ClosedError:
        return ClosedError(
            f"{what}: the handle is that of one that is gone: process {self.pid} has ended, or dropped it. Keep it there as "
            "long as others use it, and pickle it anew for each process"
        )
