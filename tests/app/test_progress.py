"""The display on a pseudo-terminal, and plain lines on a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys

import pytest

from rookery.app.progress import Lines, Silent, progress_for, short, time_left

SCRIPT = """
import time
from rookery.app.progress import progress_for
from rookery.core.stats import over_seeds
from rookery.training.scores import Score

p = progress_for()
p.compiling("training")
time.sleep(0.1)
p.compiled("training", 1.5)
for i in range(1, 11):
    p.update(i * 1000, 10_000, 2500.0, {"return": -30.0 + i})
    time.sleep(0.05)
p.evaluation(10_000, "return", [Score("", over_seeds([-23.0, -20.0]), 2)])
p.evaluation(10_000, "return", [Score("", over_seeds([-23.0]), 1)])
p.evaluation(10_000, "return", [Score(f"lr={x}", over_seeds([x]), 1) for x in (1.0, 2.0)])
p.message("brackets [stay] as they are")
p.close()
print("after")
"""


def on_terminal() -> tuple[int, str]:
    """Exit code and output of the script, its standard output a pseudo-terminal."""
    master, slave = pty.openpty()
    env = os.environ | {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=slave, stderr=slave, env=env, close_fds=True)
    os.close(slave)
    output = b""
    while select.select([master], [], [], 20)[0]:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not chunk:
            break
        output += chunk
    os.close(master)
    return process.wait(timeout=20), output.decode()


def test_live_display_on_a_terminal() -> None:
    code, text = on_terminal()
    assert code == 0
    assert "\x1b[" in text and "compiling training" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    last = [line for line in re.split(r"[\r\n]+", plain) if "10k/10k steps" in line][-1]
    for fact in ("100%", "2.5k steps/s per seed", "return -20", "0:00 left", "compile 1.5 s"):
        assert fact in last
    assert "evaluation: return, IQM -21.5 [-23, -20]" in plain
    assert "evaluation: return, IQM -23 [-]" in plain and "best: lr=2.0" in plain
    assert "brackets [stay] as they are" in plain
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") > 0  # the cursor is given back
    assert plain.rstrip().endswith("after")


def test_plain_lines_on_a_pipe() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\r" not in done.stdout and "\x1b" not in done.stdout
    assert done.stdout.splitlines() == [
        "compiled training in 1.5 s",
        "step 1,000 of 10,000 (10%), 2,500 steps/s per seed, 0:04 left, return -29",
        "step 10,000 of 10,000 (100%), 2,500 steps/s per seed, 0:00 left, return -20",
        "step 10,000: evaluation: return, IQM -21.5 [-23, -20]",
        "step 10,000: evaluation: return, IQM -23 [-]",
        "step 10,000: evaluation: return, IQM:",
        "  lr=1.0  1 [-]",
        "  lr=2.0  2 [-]",
        "  best: lr=2.0",
        "brackets [stay] as they are",
        "after",
    ]


def test_lines_are_rare_and_the_newest_is_not_lost() -> None:
    now = 0.0
    stream = io.StringIO()
    lines = Lines(stream, every=5.0, clock=lambda: now)
    for second in range(12):
        now = float(second)
        lines.update(second + 1, 100, 1.0, {})
    lines.close()
    lines.close()
    assert [int(line.split()[1]) for line in stream.getvalue().splitlines()] == [1, 6, 11, 12]


def test_the_display_suits_the_stream() -> None:
    assert isinstance(progress_for(io.StringIO()), Lines)
    assert isinstance(progress_for(io.StringIO(), quiet=True), Silent)


def test_silent_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    silent = Silent()
    silent.compiling("x")
    silent.compiled("x", 1.0)
    silent.update(1, 2, 3.0, {})
    silent.evaluation(1, "return", [])
    silent.message("text")
    silent.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("steps", "total", "rate", "text"),
    [(0, 100, 0.0, "?"), (0, 100, 1.0, "1:40"), (0, 7300, 1.0, "2:01:40"), (120, 100, 1.0, "0:00")],
)
def test_time_left(steps: int, total: int, rate: float, text: str) -> None:
    assert time_left(steps, total, rate) == text


def test_short_numbers() -> None:
    assert [short(n) for n in (0, 999, 1234, 2e6, 3.5e9)] == ["0", "999", "1.23k", "2M", "3.5G"]
