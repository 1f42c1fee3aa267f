"""The figures of a report. Every axis has a unit, and too few seeds are written into the figure itself."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from rookery.studies import stats
from rookery.studies.results import FEW, Cell, Results
from rookery.studies.summarise import few_seeds

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "figure.constrained_layout.use": True,
}
_PANELS = 12  # tasks in one figure
_MARKS = "osD^vP*X<>"


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write a figure as SVG, PNG and PDF; returns the SVG, to stand in a page."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it would be laid out anew, alike, for each of the files
        # `savefig` draws everything twice. The PNG comes first: the other two set the resolution to their own.
        figure.set_dpi(150)
        FigureCanvasAgg(figure).print_png(folder / f"{name}.png")
        FigureCanvasPdf(figure).print_pdf(folder / f"{name}.pdf")
        buffer = io.StringIO()
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    (folder / f"{name}.svg").write_text(buffer.getvalue())
    return _inline(buffer.getvalue(), name)


def all_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Name, caption and figure, in the order that suits the view."""
    makers = {
        "curves": curve_figures,
        "frames": frame_figures,
        "clock": clock_figures,
        "final": final_figures,
        "aggregate": aggregate_figures,
        "profile": profile_figures,
        "improvement": improvement_figures,
        "heatmap": heatmap_figures,
    }
    order = ["curves", "frames", "final", "improvement", "clock", "profile", "aggregate"]
    if results.view == "screening":
        order = ["aggregate", "heatmap", "profile", "improvement", "curves", "frames", "clock", "final"]
    if results.view == "ablation":
        order = ["curves", "frames", "improvement", "final", "clock", "aggregate"]
    with matplotlib.rc_context(STYLE):
        for name in order:
            yield from makers[name](results)


def curve_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Learning curves against steps."""
    yield from _curves(results, "curves", "environment steps (joint transitions) of each seed", _against_steps)


def frame_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Learning curves against frames, of tasks on which an action lasts several."""
    per_step = results.runs.frames_per_step
    tasks = [task for task in results.tasks if task in per_step]
    against = lambda cell: (cell.steps * per_step[cell.task], cell.curves)  # noqa: E731
    yield from _curves(results, "frames", "frames (environment steps times frame skip) of each seed", against, tasks)


def clock_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Learning curves against wall-clock."""
    label = "seconds of training, all seeds of a run together, without compiling and evaluation"
    yield from _curves(results, "clock", label, _against_seconds)


def final_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """The absolute metric with its interval."""
    for number, tasks in enumerate(_pages(results.tasks)):
        height = 0.28 * len(results.labels) + 0.8
        figure, axes = _grid(len(tasks), (4.2, height))
        for axis, task in zip(axes, tasks, strict=True):
            present = [label for label in results.labels if results.has_final(label, task)]
            estimates = [results.final_estimates[label, task].floats() for label in present]
            _intervals(axis, results, present, estimates)
            axis.set(title=task, xlabel=_wrap(results.scales[task].unit))
        _warn(figure, results)
        caption = f"Absolute metric of the {results.compare.policy} policies: IQM and 95% interval over seeds."
        yield _numbered("final", number), caption, figure


def aggregate_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Normalised IQM and optimality gap over all tasks."""
    labels = list(results.aggregates)
    if not labels:
        return
    figure, axes = _grid(2, (4.2, 0.28 * len(labels) + 0.8))
    units = (
        "IQM of normalised scores (0 random, 1 reference)",
        "optimality gap (normalised score; less is better)",
    )
    for axis, unit, estimates in zip(axes, units, zip(*results.aggregates.values(), strict=True), strict=True):
        _intervals(axis, results, labels, [estimate.floats() for estimate in estimates])
        axis.set(xlabel=_wrap(unit))
    _warn(figure, results)
    yield "aggregate", "Over all tasks with a reference score: IQM and optimality gap with 95% intervals.", figure


def profile_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Performance profiles."""
    labels = list(results.aggregates)
    if not labels:
        return
    every = np.concatenate([scores for label in labels for scores in results.normalised(label)])
    thresholds = np.linspace(min(0.0, every.min()), max(1.0, every.max()), 101)
    figure, (axis,) = _grid(1, (6, 3.6))
    for label in labels:
        estimate = stats.performance_profile(results.normalised(label), thresholds, results.compare.resamples)
        _band(axis, results, label, thresholds, estimate)
    axis.set(xlabel="normalised score τ (0 random, 1 reference)", ylabel="share of runs with a score above τ")
    axis.set_ylim(-0.02, 1.02)
    axis.legend(fontsize=7)
    _warn(figure, results)
    yield "profile", "Performance profile with 95% bands.", figure


def improvement_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Probability of improvement over the baseline."""
    found = results.improvements
    if not found:
        return
    figure, (axis,) = _grid(1, (6, 0.28 * len(found) + 1.0))
    _intervals(axis, results, list(found), [estimate.floats() for estimate in found.values()])
    axis.axvline(0.5, color="black", linewidth=0.8, linestyle="--")
    axis.set(xlim=(-0.02, 1.02), xlabel=f"P(X > {results.baseline}), probability")
    _warn(figure, results)
    yield "improvement", f"Probability that a seed beats a seed of {results.baseline} on the same task.", figure


def heatmap_figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    """Normalised IQM of every algorithm on every task."""
    tasks = results.scaled_tasks()
    if not tasks:
        return
    values = np.full((len(tasks), len(results.labels)), np.nan)
    for i, task in enumerate(tasks):
        for j, label in enumerate(results.labels):
            if results.has_final(label, task):
                scale = results.scales[task]
                finals = results.cells[label, task].finals
                values[i, j] = stats.iqm(stats.normalise(finals, scale.random, scale.reference))
    figure = Figure(figsize=(1.2 * len(results.labels) + 3, 0.3 * len(tasks) + 1.6))
    axis = figure.add_subplot()
    image = axis.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axis.grid(visible=False)
    axis.set_xticks(range(len(results.labels)), results.labels, rotation=30, ha="right")
    axis.set_yticks(range(len(tasks)), tasks)
    for (i, j), value in np.ndenumerate(values):
        if math.isfinite(value):
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value < 0.6 else "black")
    figure.colorbar(image, label="IQM of normalised scores")
    _warn(figure, results)
    yield "heatmap", "Normalised score of each algorithm on each task (0 random, 1 reference).", figure


# --- parts of figures


def _against_steps(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    return cell.steps, cell.curves


def _against_seconds(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    return cell.seconds, cell.timed


def _curves(
    results: Results,
    name: str,
    xlabel: str,
    against: Callable[[Cell], tuple[np.ndarray, np.ndarray]],
    shown: Sequence[str] | None = None,
) -> Iterator[tuple[str, str, Figure]]:
    """Curves of all tasks, or of those that are `shown`."""
    for number, tasks in enumerate(_pages(results.tasks if shown is None else shown)):
        figure, axes = _grid(len(tasks), (4.4, 3.2))
        for axis, task in zip(axes, tasks, strict=True):
            for label in results.labels:
                if (label, task) in results.cells:
                    _curve(axis, results, label, *against(results.cells[label, task]))
            axis.set(title=task, ylabel=_wrap(results.scales[task].unit))
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 200k, 1M
        figure.supxlabel(_wrap(xlabel, 60 * min(len(tasks), 3)), fontsize=9)
        axes[0].legend(fontsize=7)
        _warn(figure, results)
        yield _numbered(name, number), f"IQM over seeds with 95% bands, against {xlabel}.", figure


def _curve(axis: Axes, results: Results, label: str, x: np.ndarray, curves: np.ndarray) -> None:
    """The part of a curve that all members have."""
    whole = np.isfinite(curves).all(axis=0)
    if whole.any():
        # A band is looked at, not read off: fewer resamples do, the more so the more seeds there are.
        resamples = min(results.compare.resamples, max(200, min(500, 10_000 // len(curves))))
        estimate = stats.aggregate([curves[:, whole].astype(np.float32)], stats.iqm, resamples)  # sorts twice as fast
        _band(axis, results, label, x[whole], estimate)


def _band(axis: Axes, results: Results, label: str, x: np.ndarray, estimate: stats.Estimate) -> None:
    color = _color(results, label)
    axis.plot(x, estimate.value, color=color, label=label, linewidth=1.4)
    axis.fill_between(x, estimate.low, estimate.high, color=color, alpha=0.2, linewidth=0)


def _intervals(
    axis: Axes, results: Results, labels: Sequence[str], estimates: Sequence[tuple[float, float, float]]
) -> None:
    for row, (label, (value, low, high)) in enumerate(zip(labels, estimates, strict=True)):
        color, mark = _color(results, label), _MARKS[results.labels.index(label) % len(_MARKS)]
        axis.plot([low, high], [row, row], color=color, linewidth=5, alpha=0.4, solid_capstyle="butt")
        axis.plot([value], [row], mark, color=color, markersize=5)
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.5)


def _color(results: Results, label: str) -> Any:
    index = results.labels.index(label)
    table = "tab10" if len(results.labels) <= 10 else "tab20"
    return matplotlib.colormaps[table](index % matplotlib.colormaps[table].N)


def _grid(panels: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows + 0.4))
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(panels)]


def _warn(figure: Figure, results: Results) -> None:
    if 0 < results.fewest < FEW:
        figure.suptitle(few_seeds(results.fewest), color="#b00020", fontsize=9)


def _pages(tasks: Sequence[str]) -> list[Sequence[str]]:
    return [tasks[start : start + _PANELS] for start in range(0, len(tasks), _PANELS)]


def _numbered(name: str, number: int) -> str:
    return f"{name}-{number + 1}" if number else name


def _wrap(text: str, width: int = 42) -> str:
    return "\n".join(textwrap.wrap(text, width))


def _inline(svg: str, name: str) -> str:
    """An SVG without its file heading, its ids made the figure's own: many stand in one page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', svg)
    return re.sub(r"url\(#", f"url(#{name}-", svg)
