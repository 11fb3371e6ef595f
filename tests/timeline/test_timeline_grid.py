import pytest

from workbench.timeline import Action, Kind, Timeline, format_timeline, parse_timeline

GRID = """\
rank 0 | F0 -  .  B0
rank 1 | .  .  F0"""


def test_a_grid_reads_as_actions_with_their_times():
    timeline = parse_timeline(GRID, step_s=0.5, kind_of=lambda label: Kind.FORWARD)
    assert timeline.actions == (
        Action(resource="rank 0", start_s=0.0, end_s=1.0, kind=Kind.FORWARD, label="F0"),
        Action(resource="rank 0", start_s=1.5, end_s=2.0, kind=Kind.FORWARD, label="B0"),
        Action(resource="rank 1", start_s=1.0, end_s=1.5, kind=Kind.FORWARD, label="F0"),
    )


def test_a_grid_prints_as_it_was_read():
    printed = format_timeline(parse_timeline(GRID, step_s=0.1), step_s=0.1)
    assert printed == "rank 0 | F0 - .  B0\nrank 1 | .  . F0 ."
    assert format_timeline(parse_timeline(printed)) == printed


def test_an_idle_resource_keeps_its_row():
    assert format_timeline(parse_timeline("rank 0 | a\nlink |")) == "rank 0 | a\nlink   | ."


def test_a_time_between_two_steps_is_refused_rather_than_rounded():
    timeline = Timeline(actions=(Action(resource="rank 0", start_s=0, end_s=1.4, label="a"),))
    with pytest.raises(ValueError, match="multiple of step_s"):
        format_timeline(timeline)


def test_overlapping_actions_have_no_grid():
    actions = (
        Action(resource="rank 0", start_s=0, end_s=2, label="a"),
        Action(resource="rank 0", start_s=1, end_s=3, label="b"),
    )
    with pytest.raises(ValueError, match="overlap no other"):
        format_timeline(Timeline(actions=actions))


@pytest.mark.parametrize("text", ["rank 0 | - a", "rank 0 | a . -"])
def test_a_continuation_of_nothing_is_refused(text):
    with pytest.raises(ValueError, match="must follow an action"):
        parse_timeline(text)


def test_a_row_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match="each row must come once"):
        parse_timeline("rank 0 | a\nrank 0 | b")
