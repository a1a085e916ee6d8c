"""`Line`: the trainer's end of the line to one actor.

    send, wish, post ---> queue of the carrier's sender ---> deliver ===> take (the actor)
    receive <--- arrived <---- listen, a thread <=================== following (the actor)

There is always a pending call to the actor, so its end is noticed whatever it is doing.

    queue: P1 C1 P2      sent: P1 C1 P2, or, if P1 still waits when P2 is made, P2 C1

Commands and posts keep their order, except that a post replaces a waiting one of its type in its place.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reap import optional
from reap.errors import ClosedError, OptionError, text_of
from reap.workers import reports
from reap.workers.messages import Encoded, MessageKind
from reap.workers.ray.actor import HOW_TO_BRING_CODE, Whereabouts
from reap.workers.ray.channel import Ending, Fetched, as_bytes
from reap.workers.ray.store import Post, SharedObjects
from reap.workers.remote.lines import ArrivedMessage
from reap.workers.remote.versions import refuse_other_versions

NOTHING = Encoded(b"")
SHUT_DOWN = "Ray was shut down in this process"


@dataclass(eq=False)
class Item:
    """An item for the sender thread: a command, a request, or the turn of a waiting post.

    Attributes:
        line: the line to the actor.
        kind: COMMAND, POST or a `Wish`.
        encoded: the command.
        name: the name of the post's type; if it is empty, only posts whose turn has come are sent.
    """

    line: Line
    kind: int
    encoded: Encoded = NOTHING
    name: str = ""


@dataclass
class Line:
    """The trainer's end of the line to one worker.

    Args:
        actor: the actor's handle.
        spec: the worker's pickled spec.
        enqueue: passes an item to the sender thread.
        ring: called when something has arrived, or the worker has ended.

    Attributes:
        arrived: messages that have not been accepted yet; their memory is in Ray's store, and is released with them.
        whereabouts: the location of the actor; None before it runs.
        ending: a text for why the worker has ended; None while it runs.
        exit_code: as in multiprocessing; None if unknown.
        is_released: whether the carrier has released the worker.
        bytes: number of bytes that it sent.
        seconds: transfer time of its messages.
        seconds_before: transfer time of the messages of its predecessors.
    """

    actor: Any
    spec: bytes
    enqueue: Callable[[Item], Any]
    ring: Callable[[], Any]
    arrived: deque[ArrivedMessage] = field(default_factory=deque[ArrivedMessage])
    whereabouts: Whereabouts | None = None
    ending: str | None = None
    exit_code: int | None = None
    is_released: bool = False
    bytes: int = 0
    seconds: float = 0.0
    seconds_before: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether no more messages will arrive."""
        return self.ending is not None

    def __post_init__(self) -> None:
        self._ray = optional.load("ray")
        self._number = 0
        self._waiting: dict[str, Post] = {}
        self._due: dict[str, None] = {}
        """Types of waiting posts whose turn has come, in order; used by the sender thread alone."""
        self._latest: dict[str, Post] = {}
        self._posted = self._arrived = 0
        self.thread = threading.Thread(target=self._listen, name="reap-ray-line", daemon=True)

    # ------------------------------------------------------------------ from the trainer

    def post(self, post: Post) -> None:
        """Send a post, in place of a waiting one of its type."""
        self._waiting[post.name] = post
        self.enqueue(Item(self, MessageKind.POST, name=post.name))

    def deliver(self, item: Item, objects: SharedObjects) -> None:
        """Send an item, and before a command the waiting posts made before it; called only by the sender thread.

        Posts without a command are sent one at a time, because weights would pile up at an actor that cannot accept them while
        native code holds its interpreter. A post made after a command never overtakes it: the command may make what it needs.
        """
        if item.name in self._waiting:
            self._due[item.name] = None
        is_command = item.kind == MessageKind.COMMAND
        while self._due and (is_command or self._posted == self._arrived):
            name = next(iter(self._due))
            del self._due[name]
            post = self._latest[name] = self._waiting.pop(name)
            self._posted += 1
            self._take(MessageKind.POST, name, post.encoded.body, *objects.arguments(post))
        if item.kind != MessageKind.POST:
            self._take(item.kind, "", item.encoded.body, *map(as_bytes, item.encoded.buffers))

    def _take(self, kind: int, name: str, body: Any, *buffers: Any) -> None:
        self._require_ray()
        call = self.actor.take.options(concurrency_group="control")
        call.remote(self._number, kind, name, bytes(body), *buffers)
        self._number += 1

    # ------------------------------------------------------------------ from the worker

    def _listen(self) -> None:
        """Receive everything from the actor until it has ended."""
        try:
            self._begin()
            received = 0
            while self.ending is None:
                received += self._took(self._get(self.actor.following, received))
                self.ring()
        except OptionError as error:
            report = Encoded(reports.write(error, reports.AT_START, is_harmless=False))
            self.arrived.append(ArrivedMessage(MessageKind.RAISED, report))
            self.ending = str(error)
        except BaseException as error:  # noqa: BLE001  whatever Ray raises, SystemExit when it is shut down among it
            self.ending = words_of(error) if self._ray.is_initialized() else SHUT_DOWN
        self.ring()

    def _get(self, method: Any, *arguments: Any, group: str = "messages") -> Any:
        self._require_ray()
        return self._ray.get(method.options(concurrency_group=group).remote(*arguments))

    def _require_ray(self) -> None:
        """Raise ClosedError if Ray was shut down, since calls would start it again."""
        if not self._ray.is_initialized():
            raise ClosedError(SHUT_DOWN)

    def _begin(self) -> None:
        """Wait until the actor runs, and make it create its worker."""
        try:
            found = self._get(self.actor.where, group="control")
        except self._ray.exceptions.RayActorError as error:
            if "ModuleNotFoundError" in str(error):
                raise OptionError(f"a worker's actor could not be made: {words_of(error)}\n{HOW_TO_BRING_CODE}") from error
            raise
        refuse_other_versions(found.versions, f"{found.host}, Ray node {found.node[:12]},")
        self.whereabouts = found
        self._get(self.actor.prepare, self.spec, group="control")
        self.spec = b""
        self.actor.run.remote()

    def _took(self, fetched: Fetched) -> int:
        """Process a delivery; return its messages."""
        self._arrived, self.seconds = fetched.posts, fetched.seconds
        if self._waiting:
            self.enqueue(Item(self, MessageKind.POST))
        if fetched.kind is None:
            return 0
        if fetched.kind in (Ending.ENDED, Ending.LEFT):
            left = fetched.kind == Ending.LEFT
            self.exit_code = -signal.SIGTERM if left else int(fetched.body)
            self.ending = "told to leave, by SIGTERM or because its node is drained" if left else "it ended by itself"
            return 0
        encoded = Encoded(fetched.body, fetched.buffers)
        self.bytes += encoded.nbytes
        self.arrived.append(ArrivedMessage(MessageKind(fetched.kind), encoded))
        return 1


def words_of(error: BaseException) -> str:
    """Ray's message about the end of an actor, in one line, without its generic parts: ids, name, address."""
    lines = [line for line in text_of(error).splitlines() if not line.startswith("\t")]
    return " ".join(f"{type(error).__name__}: {' '.join(lines)}".split())
