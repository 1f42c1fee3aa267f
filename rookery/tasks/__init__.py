"""Environments behind one `Step`. Importing this package fills TASKS and TASK_FAMILIES."""

from rookery.tasks import compiled, host
from rookery.tasks.catalog import FACTS, Facts, describe
from rookery.tasks.host import installed

__all__ = ["FACTS", "Facts", "compiled", "describe", "host", "installed"]
