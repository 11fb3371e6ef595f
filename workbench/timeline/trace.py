"""Timelines in the Chrome trace format, for chrome://tracing and ui.perfetto.dev; one thread a row."""

import json

from .actions import Timeline

__all__ = ["chrome_trace", "chrome_trace_json"]

_MICROSECONDS_PER_S = 1e6  # the format counts in microseconds


def chrome_trace(timeline: Timeline, *, name: str = "workbench") -> dict:
    """Return a timeline as the object a Chrome trace file holds.

    Args:
        timeline: its resources become threads, from top to bottom.
        name: what the viewer calls the process.

    Returns:
        A dictionary of `traceEvents` and `displayTimeUnit`, ready for `json.dump`.
    """
    rows = {resource: row for row, resource in enumerate(timeline.resources)}
    events = [_metadata("process_name", 0, {"name": name})]
    for resource, row in rows.items():
        events.append(_metadata("thread_name", row, {"name": resource}))
        events.append(_metadata("thread_sort_index", row, {"sort_index": row}))
    for action in sorted(timeline.actions, key=lambda action: (action.start_s, rows[action.resource])):
        events.append(
            {
                "name": action.label or action.kind.value,
                "cat": action.kind.value,
                "ph": "X",
                "pid": 0,
                "tid": rows[action.resource],
                "ts": action.start_s * _MICROSECONDS_PER_S,
                "dur": action.duration_s * _MICROSECONDS_PER_S,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def chrome_trace_json(timeline: Timeline, *, name: str = "workbench") -> str:
    """Return a timeline as the text of a Chrome trace file."""
    return json.dumps(chrome_trace(timeline, name=name), allow_nan=False)


def _metadata(what: str, row: int, args: dict) -> dict:
    return {"name": what, "ph": "M", "pid": 0, "tid": row, "args": args}
