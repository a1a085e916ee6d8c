"""Takes the picture of `docs/page.md`: the page of a collection whose policy becomes better, in Chromium.

python docs/site/screenshot.py     # writes docs/images/page.png; needs Chromium and chromedriver
"""

from __future__ import annotations

import base64
import sys
from io import StringIO
from pathlib import Path

import torch
from rich.console import Console

from reap import LazyTensorStorage, MultiSyncDataCollector, ReplayBuffer, SerialEnv, progress
from tests.browser import browser, look

IMAGE = Path(__file__).parent.parent / "images" / "page.png"
BATCHES = 180
SIZE = (1100, 1000)


class Learner(torch.nn.Module):
    """Balances the pole, and presses a wrong button less and less often."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mistakes", torch.tensor(1.0))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Indices of actions, for observations `[..., 4]`."""
        angle, velocity = observation[..., 2], observation[..., 3]
        push = (angle + 0.2 * velocity > 0).long()
        return torch.where(torch.rand_like(angle) < self.mistakes, torch.randint_like(push, 2), push)


def main() -> int:
    """Collect, and take the picture before the last batches."""
    torch.set_num_threads(1)
    policy, output = Learner(), StringIO()
    workers = [lambda: SerialEnv(8, "CartPole-v1", create_env_kwargs={"categorical_action_encoding": True})] * 2
    memory = ReplayBuffer(storage=LazyTensorStorage(100_000))
    options = {"frames_per_batch": 3200, "total_frames": BATCHES * 3200, "cat_results": 0}
    with browser() as driver, MultiSyncDataCollector(workers, policy, replay_buffer=memory, **options) as collector:
        console = Console(file=output, width=200)
        for number, _ in enumerate(progress(collector, title="CartPole-v1", console=console, page=True)):
            if number == 0:
                look(driver, output.getvalue().partition("Page: ")[2].strip(), SIZE)
            policy.mistakes.fill_(max(0.02, 1.0 - 1.2 * number / BATCHES))
            collector.update_policy_weights_()
            if number == BATCHES - 20:
                taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
                IMAGE.write_bytes(base64.b64decode(taken["data"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
