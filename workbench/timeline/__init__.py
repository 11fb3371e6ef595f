"""Actions, schedules as text grids, event simulation, recordings, traces, and stragglers."""

from .actions import Action, Kind, Timeline, chrome_trace
from .grid import format_timeline, parse_timeline
from .recorder import Recorder
from .schedule import Cell, Schedule, one_forward_one_backward, pipeline_tasks
from .simulation import Task, simulate
from .stragglers import Dose, Sleeper, StragglerTrace

__all__ = ["Action", "Cell", "Dose", "Kind", "Recorder", "Schedule", "Sleeper", "StragglerTrace", "Task", "Timeline"]
__all__ += ["chrome_trace", "format_timeline", "one_forward_one_backward", "parse_timeline", "pipeline_tasks"]
__all__ += ["simulate"]
