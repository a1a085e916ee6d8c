"""What the server that forks the workers of tests imports first: that it needs no server itself.

`reap.collectors.multi` starts one when it is imported, for a process that has none.
"""

from __future__ import annotations

import socket

from reap.workers.processes import fork_client

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
ours.detach()
fork_client.inherit(theirs.detach())
