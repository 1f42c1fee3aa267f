"""What benchmarks share: timing in turns, and one form for what they measured, which tables.py reads.

A file holds tables by name, each with its machine, commit, command and rows (flat dicts). A benchmark that is asked
only some of its questions leaves the other tables of its file as they are.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def add_out(parser: ArgumentParser) -> None:
    """The option that all benchmarks have."""
    parser.add_argument("--out", type=Path, help="JSON file; its other tables are kept")


def save(out: Path | None, name: str, rows: list[Row]) -> None:
    """Put one table into a file; without a file, nothing is kept."""
    if out is None:
        return
    tables = json.loads(out.read_text()) if out.exists() else {}
    tables[name] = {"machine": _machine(), "commit": _commit(), "command": _command(), "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(tables, indent=1) + "\n")


def markdown(rows: list[Row]) -> str:
    """Rows as a Markdown table."""
    lines = [" | ".join(rows[0]), " | ".join("---" for _ in rows[0])]
    return "\n".join(f"| {line} |" for line in [*lines, *(" | ".join(map(str, row.values())) for row in rows)])


def beside(name: str, ours: list[float], peer: str, theirs: list[float]) -> Row:
    """Steps per second of all rounds of both sides, and the ratio of their best ones."""
    best = {"ours": max(ours), "theirs": max(theirs)}
    ratio = round(best["ours"] / best["theirs"], 2)
    return {"name": name, "peer": peer, **best, "ratio": ratio, "rounds": {"ours": ours, "theirs": theirs}}


def answer(command: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """The JSON in the last line that a process prints; if it fails, what it said."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def least_seconds(
    calls: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The least seconds of each call, all called in turn."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            least[name] = min(least[name], clock() - start)
    return least


def _machine() -> str:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {version('jax')}"


def _commit() -> str:
    """The checkout's commit, with a plus if files have changed since."""
    git = ["git", "-C", str(Path(__file__).parent)]
    known = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout
    return (known or "unknown") + ("+" if changed.strip() else "")


def _command() -> str:
    """How the benchmark was started; of paths, which are this machine's own, only the last name."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
