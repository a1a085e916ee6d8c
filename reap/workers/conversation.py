"""`Conversation`: the requests to one worker, and its answers."""

from __future__ import annotations

from collections import deque

from reap.workers.messages import Message, Outgoing
from reap.workers.progress import Progress


class Request:
    """A command given to a worker.

    Args:
        outgoing: the command being sent.

    Attributes:
        answer: the message that answers it.
        is_abandoned: whether the answer is to be dropped.
    """

    def __init__(self, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self.answer: Message | None = None
        self.is_abandoned = False


class Conversation:
    """Requests to one worker whose answers have not been consumed, in order.

    Attributes:
        has_started: whether the worker has made its handler.
        is_leaving: whether the worker has announced its end.
        requests: requests whose answers have not been consumed.
        reached: the worker's own report of its progress when it raised the exception that ended it.
    """

    def __init__(self) -> None:
        self.has_started = self.is_leaving = False
        self.reached: Progress | None = None
        self.requests: deque[Request] = deque()

    @property
    def is_awaited(self) -> bool:
        """Whether an answer, or the worker's end, is still to come."""
        return self.is_leaving or (bool(self.requests) and self.requests[-1].answer is None)

    def take_back(self, request: Request) -> None:
        """Withdraw a request if nothing of it has been sent."""
        if not request.outgoing.has_begun and request in self.requests:
            self.requests.remove(request)

    def keep(self, message: Message) -> None:
        """Make a message the answer to the first unanswered request; a second call with the same message does nothing."""
        if not message.is_taken and all(request.answer is not message for request in self.requests):
            waiting = next(request for request in self.requests if request.answer is None)
            waiting.answer = message
            self._drop()

    def answer(self) -> Message | None:
        """The answer to the first request, if it has arrived."""
        return self.requests[0].answer if self.requests else None

    def take(self) -> None:
        """Remove the first request and its answer, which the caller has received."""
        message = self.requests[0].answer
        assert message
        message.is_taken = True
        self.requests.popleft()

    def abandon(self) -> None:
        """Mark all requests so far as abandoned: their answers will be dropped."""
        for request in self.requests:
            request.is_abandoned = True
        self._drop()

    def _drop(self) -> None:
        while self.requests and self.requests[0].is_abandoned and self.requests[0].answer:
            self.take()

    def end(self) -> None:
        """Note that no more answers will come."""
        self.is_leaving = False
        self.requests = deque(request for request in self.requests if request.answer)
