"""The installed command in processes of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rookery.training.folder import RunFolder

COMMAND = Path(sys.executable).with_name("rookery")
Shell = Callable[..., str]


def begin(home: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command and go on."""
    pipe = subprocess.PIPE
    return subprocess.Popen([COMMAND, *words], cwd=home, env=os.environ, stdout=pipe, stderr=pipe, text=True)


def await_chunks(process: subprocess.Popen[str], out: Path, count: int) -> RunFolder:
    """Wait until the only run in `out` has so many chunks."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = list(out.glob("*__*"))
        if found and len(RunFolder(found[0]).parts("metrics")) >= count:
            return RunFolder(found[0])
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise AssertionError("no chunk in time")
