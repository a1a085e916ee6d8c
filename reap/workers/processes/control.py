"""`ControlBlock`: a few int32 per worker, in memory shared by the worker and its parent."""

from __future__ import annotations

import ctypes
import mmap
import os

from reap.system.endings import at_end
from reap.system.native import libc
from reap.workers.progress import CONTROL_INTS, Control, new_control

CACHE_LINE = 64
STRIDE = -(-CONTROL_INTS * 4 // CACHE_LINE) * CACHE_LINE

if libc:
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class ControlBlock:
    """The control ints of all workers of a group (`reap.workers.progress`), each worker's in separate cache lines.

    Args:
        workers: number of workers whose ints to map, counted from the first.
        descriptor: the descriptor of an existing block; None makes a new one.

    Attributes:
        descriptor: the memfd's; views outlive it.
    """

    def __init__(self, workers: int, descriptor: int | None = None) -> None:
        size, is_new = max(1, workers) * STRIDE, descriptor is None
        if descriptor is None:
            descriptor = os.memfd_create("reap-control", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
        self.descriptor = descriptor
        self._bytes = _mapped(descriptor, size)
        for worker in range(workers if is_new else 0):
            self.of(worker)[:] = new_control()

    def of(self, worker: int) -> Control:
        """A worker's control ints; valid as long as the array is referenced, even after `close`."""
        start = worker * STRIDE
        return self._bytes[start : start + 4 * CONTROL_INTS].cast("i")

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _mapped(descriptor: int, size: int) -> memoryview:
    """Map shared memory that is unmapped with its last view; `mmap.mmap` would hold a descriptor until then."""
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address in {None, ctypes.c_void_p(-1).value}:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    memory = (ctypes.c_ubyte * size).from_address(address)
    at_end(memory, libc.munmap, address, size)
    return memoryview(memory).cast("B")
