"""`python -m reap`: the same as the command `reap`."""

from __future__ import annotations

import sys

from reap.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
