"""Tasks whose environments live outside XLA. Their packages are imported when a task is opened."""

from rookery.tasks.host import atari_task, factory_task, gymnasium_task, pettingzoo_task, pymarl_task
from rookery.tasks.host.names import installed

__all__ = ["atari_task", "factory_task", "gymnasium_task", "installed", "pettingzoo_task", "pymarl_task"]
