"""The installed command in processes of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rookery.training.folder import RunFolder

COMMAND = Path(sys.executable).with_name("rookery")
Shell = Callable[..., str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that commands are run in."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def shell(home: Path) -> Shell:
    """Run a command to its end and return what it printed."""

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run([COMMAND, *words], cwd=home, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, f"rookery {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + (done.stderr if code else "")

    return run


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
