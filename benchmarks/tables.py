"""Write the tables of docs/performance.md and docs/costs.md anew from what benchmarks measured.

    python benchmarks/tables.py FILE.json ... [--pages docs/performance.md docs/costs.md]

A table stands between `<!-- table NAME -->` and `<!-- end -->`, and ends with the machine, commit and command that it
comes from. Tables that no file has stay as they are; a file's tables that no page has a place for are named.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
Table = list[list[str]]
"""Heads, then rows; a head that begins with `<` is of a column of words, the others are of numbers."""
_DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = [_DOCS / "performance.md", _DOCS / "costs.md"]


def rewrite(page: str, found: dict[str, Any]) -> tuple[str, list[str]]:
    """The page with every table that was found, and the names of those that it has no place for."""
    homeless = []
    for name, record in found.items():
        place = re.compile(rf"(<!-- table {re.escape(name)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
        if name not in LAYOUTS or not place.search(page):
            homeless.append(name)
            continue
        source = f"{record['machine']}; commit `{record['commit']}`; `{record['command']}`"
        text = f"{_markdown(LAYOUTS[name](record['rows']))}\n\n{source}\n"
        page = place.sub(lambda match, text=text: match[1] + text, page)
    return page, homeless


def _markdown(table: Table) -> str:
    head, *rows = table
    rule = "|".join(["", *("---" if name.startswith("<") else "---:" for name in head), ""])
    lines = [[name.removeprefix("<") for name in head], *rows]
    text = [re.sub(r" +", " ", f"| {' | '.join(line)} |") for line in lines]
    return "\n".join([text[0], rule, *text[1:]])


def _number(x: float) -> str:
    """Three digits, thousands apart."""
    if abs(x) < 100:
        return f"{x:.3g}"
    digits = len(str(int(abs(x)))) - 3
    return f"{round(x, -digits):,.0f}"


def _code(side: str) -> str:
    """A preset's name, and what was changed of it, as the page writes them."""
    name, comma, rest = side.partition(",")
    return f"`{name}`{comma}{rest}"


def _pivot(rows: Rows, key: Callable[[Any], Any], of: str) -> dict[Any, dict[str, Any]]:
    """Rows by key, then by the value of one column."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(key(row), {})[row[of]] = row
    return found


def peers(rows: Rows) -> Table:
    """Both sides of each case, and ratios; above 1 is in our favor."""
    table = [
        ["<case", "Rookery, steps/s", "JaxMARL, steps/s", "ratio", "compiling, cold", "start, cold", "peak memory"]
    ]
    for case, sides in _pivot(rows, lambda row: row["case"], "side").items():
        ours, theirs = sides["ours"], sides["jaxmarl"]
        speeds = [side["steps_per_second"] for side in (ours, theirs)]
        less = [theirs[name] / ours[name] for name in ("compile_cold", "ready_cold", "peak_mib")]
        table.append([case, *(f"{x:,.0f}" for x in speeds), *(f"{x:.2f}" for x in (speeds[0] / speeds[1], *less))])
    return table


def time_to_score(rows: Rows) -> Table:
    """Seconds of each side; in brackets the best score of a run that did not get there."""
    sides = list(dict.fromkeys(row["side"] for row in rows))

    def cell(row: dict[str, Any]) -> str:
        best = f"{row['score']:.0%}" if row["goal"] > 0 else f"{row['score']:.1f}"
        return f"({best})" if row["seconds"] is None else f"{row['seconds']:.0f}"

    table, before = [["<score", "seed", *("JaxMARL" if side == "jaxmarl" else _code(side) for side in sides)]], None
    for (task, goal, seed), found in _pivot(rows, lambda row: (row["task"], row["goal"], row["seed"]), "side").items():
        title = f"{task}, {f'{goal:.0%}' if goal > 0 else goal}"
        table.append(
            ["" if title == before else title, str(seed), *(cell(found[s]) if s in found else "" for s in sides)]
        )
        before = title
    return table


def torch_peers(rows: Rows) -> Table:
    """Their speed and ours."""
    table = [["<settings", "theirs", "ours, one shard", "ratio", "ours, two shards", "ratio"]]
    for row in rows:
        ours = [(_number(row[name]), f"{row[name] / row['theirs']:.1f}") for name in ("one shard", "two shards")]
        table.append([row["case"], _number(row["theirs"]), *ours[0], *ours[1]])
    return table


def shards(rows: Rows) -> Table:
    """Steps per second of each way to use the cores."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    found = _pivot(rows, lambda row: (row["preset"], row["task"]), "way")
    lines = [[f"`{p}`, {t}", *(_number(by[way]["steps_per_second"]) for way in ways)] for (p, t), by in found.items()]
    return [["<", *ways], *lines]


def mechanisms(rows: Rows) -> Table:
    """Milliseconds and ratios of each side, on each task."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    table = [["<", "<builds on", *(head for task in tasks for head in (f"{task}, ms", "ratio"))]]
    for (side, base), by in _pivot(rows, lambda row: (row["side"], row["against"]), "task").items():
        alone = side == base
        pairs = [(_number(by[t]["ms per gradient step"]), "" if alone else f"{by[t]['ratio']:.2f}") for t in tasks]
        table.append([_code(side), "" if alone else _code(base), *(cell for pair in pairs for cell in pair)])
    return table


def beside(rows: Rows) -> Table:
    """The best rates of both sides."""
    lines = [
        [row["name"], row["peer"], _number(row["ours"]), _number(row["theirs"]), f"{row['ratio']:.2f}"] for row in rows
    ]
    return [["<setting", "<peer", "Rookery, steps/s", "peer, steps/s", "ratio"], *lines]


def memory_reads(rows: Rows) -> Table:
    """Milliseconds of 16 queries by each method, beside the Nature CNN's forward pass."""
    shown = ("blocks, ms", "top_k, ms", "approx, ms", "approx, recall", "Nature CNN, ms")
    heads = ["<tables", "keys in each", "exact, in blocks, ms", "top_k, ms", "approx_max_k, ms", "its recall"]
    lines = [
        [str(row["tables"]), f"{row['keys']:,}", *(str(row[name]) for name in shown)]
        for row in rows
        if row["batch"] == 16
    ]
    return [[*heads, "Nature CNN, ms"], *lines]


def plain(rows: Rows) -> Table:
    """Rows as they are; the first column is of words."""
    first, *others = rows[0]
    return [[f"<{first}", *others], *([str(value) for value in row.values()] for row in rows)]


LAYOUTS: dict[str, Callable[[Rows], Table]] = {
    **{layout.__name__: layout for layout in (peers, time_to_score, torch_peers, shards, mechanisms, memory_reads)},
    **dict.fromkeys(("sb3", "epymarl", "atari", "maddpg", "atari_learning"), beside),
    **dict.fromkeys(("atari_memory", "atari_convolution", "hyper_presets", "hyper_forms"), plain),
}


def main() -> None:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES)
    given = parser.parse_args()
    found = {name: record for file in given.files for name, record in json.loads(file.read_text()).items()}
    homeless = set(found)
    for page in given.pages:
        text, without = rewrite(page.read_text(), found)
        page.write_text(text)
        homeless &= {*without}
    print(f"{len(found) - len(homeless)} tables written; no place for: {', '.join(sorted(homeless)) or 'none'}")


if __name__ == "__main__":
    main()
