"""`python -m rookery.app.speed SECONDS < CONFIG`: print how many steps per second a run trains here."""

from __future__ import annotations

import json
import sys

from rookery.app.options import load_registries
from rookery.core.config import from_json
from rookery.training.config import RunConfig


def main(seconds: float) -> int:
    """Measure the run whose config comes on the standard input."""
    load_registries()
    from rookery.training.speed import steps_per_second

    print(steps_per_second(from_json(RunConfig, json.load(sys.stdin)), seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
