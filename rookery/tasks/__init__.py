"""Environments behind one `Step`. Importing this package fills TASKS and TASK_FAMILIES."""

from rookery.tasks import compiled
from rookery.tasks.catalog import FACTS, Facts, describe

__all__ = ["FACTS", "Facts", "compiled", "describe"]
