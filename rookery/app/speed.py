"""`python -m rookery.app.speed [FILE.py..] SECONDS < CONFIG`: print how many steps per second a run trains here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rookery.app.options import load_registries
from rookery.core.config import from_json
from rookery.core.imports import import_files
from rookery.training.config import RunConfig


def main(seconds: float, files: Sequence[str] = ()) -> int:
    """Measure the run whose config comes on the standard input; `files` are imported first."""
    load_registries()
    import_files(files)
    from rookery.training.speed import steps_per_second

    print(steps_per_second(from_json(RunConfig, json.load(sys.stdin)), seconds))
    return 0


if __name__ == "__main__":
    *own, duration = sys.argv[1:]
    sys.exit(main(float(duration), own))
