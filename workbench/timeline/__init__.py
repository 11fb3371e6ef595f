"""Actions, schedules as text grids, event simulation, recordings, traces, and seeded stragglers."""

from workbench.timeline.actions import chrome_trace, chrome_trace_json

from .actions import Action, Kind, Timeline
from .grid import format_timeline, parse_timeline
from .recorder import Recorder
from .schedule import Cell, Schedule, gpipe, one_forward_one_backward, parse_schedule, pipeline_tasks
from .simulation import Task, simulate
from .stragglers import Dose, Sleeper, StragglerTrace

__all__ = [
    "Action",
    "Cell",
    "Dose",
    "Kind",
    "Recorder",
    "Schedule",
    "Sleeper",
    "StragglerTrace",
    "Task",
    "Timeline",
    "chrome_trace",
    "chrome_trace_json",
    "format_timeline",
    "gpipe",
    "one_forward_one_backward",
    "parse_schedule",
    "parse_timeline",
    "pipeline_tasks",
    "simulate",
]
