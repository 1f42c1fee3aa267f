"""Stands in for a worker: `stand_in.py RUN_FOLDER PARENT` ends as `actions.json` beside the runs tells its preset.

A file, so that what a run does can change between two starts of a study.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from rookery.app.worker import end_with
from rookery.training.folder import RunFolder

ACTIONS = "actions.json"


def tell(beside: Path, **actions: str) -> str:
    """Say what each preset does, by default to complete; returns the program."""
    (beside / ACTIONS).write_text(json.dumps(actions))
    return __file__


def main(folder: RunFolder, parent: int) -> None:
    end_with(parent)
    action = json.loads((folder.path.parent.parent / ACTIONS).read_text()).get(folder.name.split("__")[0], "complete")
    with folder.lock():
        folder.set_status("running", threads=os.environ["NPROC"])
        if action == "sleep":
            time.sleep(600)
        if action == "chunk":  # as long as nobody has written "go", and it is not interrupted by that
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            folder.set_status("running", "in a chunk")
            while not (folder.path.parent.parent / "go").exists():
                time.sleep(0.05)
            folder.set_status("running", "saved")
            sys.exit(130)
        if action == "say":
            print("the cause")
            sys.exit(3)
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        folder.set_status("complete", "done", 1.0, threads=os.environ["NPROC"])


if __name__ == "__main__":
    main(RunFolder(Path(sys.argv[1])), int(sys.argv[2]))
