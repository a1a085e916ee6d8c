"""`Handle`: lets another process map the same memory.

A pid and a descriptor say where to find the memory. Both may have been reused by then, so the handle also holds the device
and inode of the expected file.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from reap.errors import ClosedError


class Handle(NamedTuple):
    """The place where shared memory is open, and its identity.

    Attributes:
        pid: the process that holds it open.
        fd: its descriptor there.
        device: the device of the memory's file.
        inode: its inode number.
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
        """Open that memory in this process; the caller closes the descriptor.

        Args:
            what: the contents of the memory, for the error message.

        Raises:
            ClosedError: the process has ended or closed it, or its descriptor now belongs to another file.
        """
        path = f"/proc/{self.pid}/fd/{self.fd}"
        try:
            if not self._is(os.stat(path)):  # before it is opened, which may have effects if it is a device by now
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
            f"{what}: the handle refers to memory that no longer exists: process {self.pid} has ended, or dropped it. Keep it "
            "there as long as others use it, and pickle it again for each process"
        )
