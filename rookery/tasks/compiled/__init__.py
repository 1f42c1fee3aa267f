"""Tasks written in JAX, which train inside one compiled program."""

from rookery.tasks.compiled import hanabi, matrix, maze, mpe, overcooked, riddle, smax, social

__all__ = ["hanabi", "matrix", "maze", "mpe", "overcooked", "riddle", "smax", "social"]
