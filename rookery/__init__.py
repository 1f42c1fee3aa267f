"""Rookery trains, compares and explains multi-agent and memory-based reinforcement learning."""

__version__ = "0.1.0"
