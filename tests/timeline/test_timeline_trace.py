import json

from workbench.timeline import Action, Kind, Timeline, chrome_trace, chrome_trace_json

TIMELINE = Timeline(
    actions=(
        Action(resource="link", start_s=0.002, end_s=0.0025, kind=Kind.COMMUNICATE, label="all-reduce"),
        Action(resource="rank 0", start_s=0.0, end_s=0.002),
    ),
    resources=("rank 0", "link"),
)


def test_a_timeline_becomes_the_trace_worked_by_hand():
    assert chrome_trace(TIMELINE, name="layer") == {
        "displayTimeUnit": "ms",
        "traceEvents": [
            {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "layer"}},
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "rank 0"}},
            {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": 0, "args": {"sort_index": 0}},
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": "link"}},
            {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": 1, "args": {"sort_index": 1}},
            {"name": "compute", "cat": "compute", "ph": "X", "pid": 0, "tid": 0, "ts": 0.0, "dur": 2000.0},
            {"name": "all-reduce", "cat": "communicate", "ph": "X", "pid": 0, "tid": 1, "ts": 2000.0, "dur": 500.0},
        ],
    }


def test_the_file_holds_the_same_trace():
    assert json.loads(chrome_trace_json(TIMELINE)) == chrome_trace(TIMELINE)
