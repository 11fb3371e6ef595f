import pytest

from workbench.timeline import Action, Kind, Timeline


def action(resource, start_s, end_s, kind=Kind.COMPUTE):
    return Action(resource=resource, start_s=start_s, end_s=end_s, kind=kind)


def test_an_action_that_ends_before_it_starts_is_refused_by_name():
    with pytest.raises(ValueError, match="end_s is 1.0; it must not be before start_s, 2.0"):
        action("rank 0", 2.0, 1.0)


def test_an_action_at_no_finite_time_is_refused():
    with pytest.raises(ValueError, match="end_s is inf"):
        action("rank 0", 0.0, float("inf"))


def test_rows_that_lack_an_acting_resource_are_refused():
    with pytest.raises(ValueError, match=r"lacks \['rank 1'\]"):
        Timeline(actions=(action("rank 1", 0, 1),), resources=("rank 0",))


def test_seconds_are_added_up_by_resource_and_by_kind():
    timeline = Timeline(
        actions=(
            action("rank 0", 0, 3),
            action("rank 0", 3, 5, Kind.COMMUNICATE),
            action("rank 1", 1, 5, Kind.COMMUNICATE),
        )
    )
    assert timeline.duration_s == 5
    assert timeline.total_s(resource="rank 0") == 5
    assert timeline.total_s(kind=Kind.COMMUNICATE) == 6
    assert timeline.total_s(resource="rank 1", kind=Kind.COMPUTE) == 0


def test_merged_recordings_start_at_zero_and_keep_their_distance():
    merged = Timeline.merged([[action("rank 0", 100.5, 101.0)], [action("rank 1", 100.25, 102.0)]])
    assert [(a.resource, a.start_s, a.end_s) for a in merged.actions] == [("rank 0", 0.25, 0.75), ("rank 1", 0.0, 1.75)]
    assert merged.resources == ("rank 0", "rank 1")
