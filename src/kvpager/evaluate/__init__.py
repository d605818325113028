"""Output quality of a tiered run against dense attention, by paired trials; see `compare`."""

from kvpager.evaluate.base import TASKS, Runner, Task
from kvpager.evaluate.compare import evaluate

__all__ = ["TASKS", "Runner", "Task", "evaluate"]
