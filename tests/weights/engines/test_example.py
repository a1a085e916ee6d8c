"""The example that sends weights between two processes, as a reader runs it."""

from __future__ import annotations

import pytest

from tests.workers.scripts import Script

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


@pytest.mark.parametrize("way", ["rpc", "distributed", "module"])
def test_the_actor_has_the_last_weights(way: str) -> None:
    with Script("", ["examples/weights_between_processes.py", "--way", way]) as script:
        output, errors = script.communicate()
        assert output == "the actor has [5.0, 5.0]\n", errors
        assert script.code == 0
