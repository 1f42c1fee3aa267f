"""`python -m rookery.app.worker [LOG..] RUN_FOLDER PARENT`: train one run of a study, as long as PARENT lives."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rookery.app.options import load_registries
from rookery.core.errors import RookeryError


def main(folder: Path, parent: int, log: Sequence[str] = ()) -> int:
    """Train or resume the run; returns the exit code."""
    end_with(parent)
    load_registries()
    from rookery.training.train import resume

    try:
        resume(folder, log=log)
    except RookeryError as error:
        print(f"rookery: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    return 0


def end_with(parent: int) -> None:
    """Stop when the study was killed: nobody would see what this process does."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)  # at any moment: the folder survives it

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    *names, run, process = sys.argv[1:]
    sys.exit(main(Path(run), int(process), names))
