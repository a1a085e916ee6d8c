"""What one worker was asked, and what it has answered."""

from __future__ import annotations

from collections import deque

from reap.workers.messages import Message, Outgoing
from reap.workers.progress import Progress


class Request:
    """A command that was given to a worker.

    Args:
        outgoing: the command on its way.

    Attributes:
        answer: the message that answers it.
        is_abandoned: whether nobody wants the answer.
    """

    def __init__(self, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self.answer: Message | None = None
        self.is_abandoned = False


class Conversation:
    """Requests to one worker whose answers have not been taken, in order.

    Attributes:
        has_started: whether the worker has made its handler.
        is_leaving: whether the worker has said that its end is next.
        requests: those whose answers have not been taken.
        reached: how far the worker had come when it raised what ended it, as it said itself.
    """

    def __init__(self) -> None:
        self.has_started = self.is_leaving = False
        self.reached: Progress | None = None
        self.requests: deque[Request] = deque()

    @property
    def is_awaited(self) -> bool:
        """Whether an answer, or the worker's end, has yet to come."""
        return self.is_leaving or (bool(self.requests) and self.requests[-1].answer is None)

    def take_back(self, request: Request) -> None:
        """Forget a request if nothing of it has left."""
        if not request.outgoing.has_begun and request in self.requests:
            self.requests.remove(request)

    def keep(self, message: Message) -> None:
        """Make a message the answer of the first request that has none; a second call with the same message does nothing."""
        if not message.is_taken and all(request.answer is not message for request in self.requests):
            waiting = next(request for request in self.requests if request.answer is None)
            waiting.answer = message
            self._drop()

    def answer(self) -> Message | None:
        """The answer of the first request, if it has come."""
        return self.requests[0].answer if self.requests else None

    def take(self) -> None:
        """The user has the answer of the first request: forget both."""
        message = self.requests[0].answer
        assert message
        message.is_taken = True
        self.requests.popleft()

    def abandon(self) -> None:
        """Nobody wants the answers of the requests made so far."""
        for request in self.requests:
            request.is_abandoned = True
        self._drop()

    def _drop(self) -> None:
        while self.requests and self.requests[0].is_abandoned and self.requests[0].answer:
            self.take()

    def end(self) -> None:
        """No more answers will come."""
        self.is_leaving = False
        self.requests = deque(request for request in self.requests if request.answer)
