"""The neighbours that are installed, for tests that compare with what only their later versions do."""

from __future__ import annotations

from importlib.metadata import version

import pytest

TORCHRL = tuple(int(part) for part in version("torchrl").split(".")[:2])

since_torchrl_013 = pytest.mark.skipif(TORCHRL < (0, 13), reason="torchrl does so since 0.13")
"""The method, key or check that reap has too came with that version."""
