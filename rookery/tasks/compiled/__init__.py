"""Tasks written in JAX, which train inside one compiled program."""

from rookery.tasks.compiled import (
    hanabi,
    key_to_door,
    matrix,
    maze,
    minatar,
    mpe,
    overcooked,
    riddle,
    rooms,
    smax,
    social,
    tmaze,
)

__all__ = [
    "hanabi",
    "key_to_door",
    "matrix",
    "maze",
    "minatar",
    "mpe",
    "overcooked",
    "riddle",
    "rooms",
    "smax",
    "social",
    "tmaze",
]
