"""What a process listens on, as the kernel has it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
from pathlib import Path

LISTENING = "0A"


def listening(pid: int) -> list[str]:
    """The addresses that the TCP sockets of a process listen on."""
    own = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in own:
                found.append(_address(fields[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    words = [int(text[start : start + 8], 16).to_bytes(4, "little") for start in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
