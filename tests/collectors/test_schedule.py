"""The order in which replies become batches."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from reap.collectors.workers.requests import gather_all


class Backwards:
    """A group whose workers reply in the reverse order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.log: list[Any] = []

    def request(self, worker: int, command: Any) -> None:
        self.log.append((worker, command))

    def ready(self, among: Collection[int]) -> tuple[int, Any]:
        worker = max(among)
        self.log.append(sorted(among))
        return worker, f"reply {worker}"

    def stop(self, timeout: float | None = None) -> None: ...


def test_all_are_asked_before_any_reply_is_waited_for_and_replies_are_in_order() -> None:
    group = Backwards(3)
    assert gather_all(group, "go") == ["reply 0", "reply 1", "reply 2"]
    assert group.log == [(0, "go"), (1, "go"), (2, "go"), [0, 1, 2], [0, 1], [0]]
