"""Train, resume and evaluate runs: the host's side of every engine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import polars as pl

from rookery.core.config import from_json, label, to_json
from rookery.core.errors import ConfigError, RookeryError, RunError, TrainingError
from rookery.core.keys import stream
from rookery.training import checkpoint, digest, frames, logs, provenance
from rookery.training.check import check
from rookery.training.compiled.compiler import use_compilation_cache
from rookery.training.config import RunConfig
from rookery.training.engine import Engine, Layout, claim, open_engine
from rookery.training.folder import Kind, RunFolder
from rookery.training.interrupt import Interrupted, Interruptions
from rookery.training.progress import Progress, Silent
from rookery.training.reads import refuse_unread
from rookery.training.run import Run
from rookery.training.state import ChunkReport, Policies, RunState, member_infos

Write = Callable[[Kind, int, pl.DataFrame], None]
"""Adds the part of a chunk to the run's folder, and to the logs."""


def train(
    config: RunConfig, out: Path | str = "runs", progress: Progress | None = None, log: Sequence[str] = ()
) -> Run:
    """Train a config into its run folder: from the start, from its last checkpoint, or not at all if it is complete.

    `log` names other programs that can watch ("tensorboard", "wandb"): their logs are written into the folder too.
    """
    progress = progress or Silent()
    folder = RunFolder.locate(Path(out), to_json(config), config.preset, config.task_name)
    begun = _begun_on(folder)
    claim(config, begun)
    check(config)
    logs.require(log)
    if not folder.path.exists():
        refuse_unread(config)
    folder = RunFolder.open_or_create(Path(out), to_json(config), config.preset, config.task_name)
    if folder.status().state == "complete":
        progress.message(f"{folder.path} is complete; nothing to do.")
        return Run(folder)
    use_compilation_cache()
    with folder.lock():
        try:
            with closing(open_engine(config, begun)) as engine:
                _train(engine, folder, progress, log)
        except RookeryError as error:
            # A full disk may be the cause, then the status cannot be written either.
            with suppress(RunError):
                folder.set_status("failed", str(error))
            raise
    return Run(folder)


def _begun_on(folder: RunFolder) -> Layout | None:
    """The layout that the run's newest checkpoint was written on; None if there is none."""
    known = [m.layout for m in checkpoint.manifests(folder.checkpoints) if m.layout]
    return Layout(**known[-1]) if known else None


def resume(path: Path | str, progress: Progress | None = None, log: Sequence[str] = ()) -> Run:
    """Go on with the run in this folder."""
    path = Path(path)
    return train(from_json(RunConfig, RunFolder(path).config()), path.parent, progress, log)


def evaluate_run(path: Path | str, episodes: int, which: str = "best") -> pl.DataFrame:
    """Fresh greedy episodes of a run's policies: one row per episode and member."""
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, not {episodes}.")
    run = Run(RunFolder(Path(path)))
    use_compilation_cache()
    frame = _absolute(run.engine, run.policies, episodes, "rookery eval")
    return frame.filter(pl.col("which") == which).drop("which")


def evaluate_fresh(config: RunConfig, episodes: int) -> pl.DataFrame:
    """Greedy episodes of what a config begins with (saved policies, for one): one row per episode and member."""
    check(config)
    use_compilation_cache()
    with closing(open_engine(config)) as engine:
        frame = _absolute(engine, engine.policies(engine.init()), episodes, "rookery eval")
    return frame.filter(pl.col("which") == "last").drop("which")


def _train(engine: Engine, folder: RunFolder, progress: Progress, log: Sequence[str]) -> None:
    needed = checkpoint.nbytes(engine.shapes) * (engine.config.checkpoints.keep + 2)
    checkpoint.check_writable(folder.checkpoints, needed)
    provenance.record(folder.path, engine.record())
    found = checkpoint.load(folder.checkpoints, engine.shapes)
    for note in [*engine.notes, *(found.warnings if found else ())]:
        progress.message(note)
    done = found.manifest.chunk if found else -1
    folder.drop_after(done)
    _set_status(engine, folder, "running")
    progress.compiling("program")
    start = time.perf_counter()
    engine.prepare(fresh=found is None)
    state = found.state if found else engine.init()
    progress.compiled("program", time.perf_counter() - start)
    if found:
        progress.message(f"resumed after {min(found.manifest.steps):,} steps from {found.manifest.name}.")
        del found
    with logs.logging(log, engine.config, folder) as write_log:

        def write(kind: Kind, chunk: int, frame: pl.DataFrame) -> None:
            folder.write_part(kind, chunk, frame)
            write_log(kind, frame)

        state = _loop(engine, folder, write, state, done, progress)
    _finish(engine, folder, state, progress)


def _set_status(
    engine: Engine, folder: RunFolder, state: Any, message: str = "", share: float = 0.0, **facts: Any
) -> None:
    folder.set_status(state, message, share, label=label(engine.config.preset, engine.config.algo), **facts)


def _loop(engine: Engine, folder: RunFolder, write: Write, state: RunState, done: int, progress: Progress) -> RunState:
    """Chunks until every member has spent the budget; evaluations and checkpoints in between."""
    config, members = engine.config, member_infos(engine.config)
    total = config.steps * len(members)
    saved = time.monotonic()
    if done < 0:
        state, _ = _evaluate(engine, write, state, 0, progress)
    taken = int(np.asarray(state.members.steps, np.int64).sum())
    score = float("nan")
    chunk = max(done, 0)
    with Interruptions(progress.message) as stop:
        while np.asarray(state.members.steps).min() < config.steps:
            chunk += 1
            start = time.perf_counter()
            state, report = engine.chunk(state)
            means = _means(report)
            seconds = time.perf_counter() - start
            _stop_if_broken(report, folder)
            before, taken = taken, int(np.asarray(report.steps, np.int64).sum())
            write("metrics", chunk, frames.metrics(config, chunk, report, means))
            write("timing", chunk, frames.timing(chunk, seconds, taken - before))
            finished = np.asarray(report.steps).min() >= config.steps
            if chunk % config.evaluation.rows == 0 or finished:
                state, score = _evaluate(engine, write, state, chunk, progress)
            rate = (taken - before) / seconds
            measured = {name: float(np.nanmean(x)) for name, x in means.items() if not np.isnan(x).all()}
            progress.update(taken, total, rate, measured)
            steps = np.asarray(report.steps).tolist()
            if time.monotonic() - saved > config.checkpoints.seconds or finished or stop.asked:
                checkpoint.save(
                    folder.checkpoints,
                    state,
                    chunk=chunk,
                    steps=steps,
                    score=score,
                    keep=config.checkpoints.keep,
                    layout=asdict(engine.layout),
                )
                facts = {"steps": taken, "steps_per_second": round(rate), "score": score}
                _set_status(engine, folder, "running", "", min(taken / total, 1.0), **facts)
                saved = time.monotonic()
            if stop.asked and not finished:
                raise Interrupted(f"everything up to step {min(steps):,} is kept")
    return state


def _evaluate(engine: Engine, write: Write, state: RunState, chunk: int, progress: Progress) -> tuple[RunState, float]:
    """Greedy episodes, written; returns the mean score over members."""
    steps = np.asarray(state.members.steps).tolist()  # before the state is donated
    state, episodes = engine.evaluate(state)
    frame = frames.episodes(engine.config, episodes, steps).with_columns(pl.lit(chunk).alias("chunk"))
    write("evaluations", chunk, frame)
    scores = frame.group_by("member").agg(pl.col("score").mean()).sort("member")["score"].to_numpy()
    half = 1.96 * float(scores.std(ddof=1)) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
    mean = float(scores.mean())
    progress.evaluation(min(steps), mean, score_unit(engine.config), (mean - half, mean + half))
    return state, mean


def score_unit(config: RunConfig) -> str:
    """What the score of the run's task counts."""
    return "success" if config.task.spec.score == "success" else "return (mean over agents)"


def _finish(engine: Engine, folder: RunFolder, state: RunState, progress: Progress) -> None:
    """The absolute evaluation; then policies replace the states, which a complete run never needs again."""
    config, policies = engine.config, engine.policies(state)
    final = _absolute(engine, policies, config.evaluation.final, "final")
    folder.write_part("final", 0, final)
    digest.write(folder)
    if not folder.policies.exists():
        steps = np.asarray(policies.steps).tolist()
        checkpoint.save(folder.policies, policies, chunk=0, steps=steps, score=float("nan"), keep=1)
    scores = dict(final.group_by("which").agg(pl.col("score").mean()).sort("which").iter_rows())
    text = ", ".join(f"{which} {score:.4g}" for which, score in scores.items())
    _set_status(engine, folder, "complete", f"final {score_unit(config)}: {text}", 1.0, score=scores["best"])
    shutil.rmtree(folder.checkpoints)
    progress.message(f"complete: final {score_unit(config)} of {config.evaluation.final} episodes: {text}")


def _absolute(engine: Engine, policies: Policies, episodes: int, purpose: str) -> pl.DataFrame:
    """At least `episodes` greedy episodes of every member's last and best policy, in groups of one compiled size.

    Start states depend on the member's seed only: seeds are independent of each other, algorithms are paired.
    """
    per_call = engine.config.evaluation.episodes
    steps = np.asarray(policies.steps).tolist()
    played = []
    for call in range(-(-episodes // per_call)):
        keys = jnp.stack([stream(key, purpose, call) for key in policies.key])
        for which, result in engine.play(policies, keys).items():
            frame = frames.episodes(engine.config, result, steps, call * per_call)
            played.append(frame.with_columns(pl.lit(which).alias("which")))
    return pl.concat(played).filter(pl.col("episode") < episodes).sort("which", "member", "episode")


def _means(report: ChunkReport) -> dict[str, np.ndarray]:
    """Means of the chunk for each member; NaN where nothing was measured."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            name: np.where(np.asarray(m.weight) > 0, np.asarray(m.total) / np.asarray(m.weight), np.nan)
            for name, m in report.means.items()
        }


def _stop_if_broken(report: ChunkReport, folder: RunFolder) -> None:
    for name, steps in report.broken.items():
        for member, step in enumerate(np.asarray(steps).tolist()):
            if step >= 0:
                known = checkpoint.manifests(folder.checkpoints)
                kept = f"The last good checkpoint is {known[-1].name}" if known else "No checkpoint was written yet"
                raise TrainingError(
                    f"{name} of member {member} is not finite at step {step:,}. {kept} in {folder.path}. "
                    "Try a lower learning rate or a smaller gradient clip."
                )
