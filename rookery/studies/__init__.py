"""Grids of runs: plan them, train them side by side, read them back, compare them honestly."""
