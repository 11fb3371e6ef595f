"""From time-stamped operations to idle spans; all numbers by hand."""

import pytest

from workbench.techniques.gemini.method.profiling import (
    IdleProfile,
    Operation,
    ProfiledIteration,
    idle_spans_s,
    least_spans,
    profile_idle_spans,
)


def iteration(*times: tuple[float, float], start_s: float = 0.0, end_s: float = 10.0, name: str = "one"):
    operations = tuple(Operation(start_s=start, end_s=end) for start, end in times)
    return ProfiledIteration(name=name, start_s=start_s, end_s=end_s, operations=operations)


def test_idle_is_what_lies_before_each_operation_and_after_the_last():
    assert idle_spans_s(iteration((1, 3), (6, 7))) == (1, 3, 3)


def test_an_iteration_without_operations_is_one_idle_span():
    assert idle_spans_s(iteration(start_s=2, end_s=5)) == (3,)


def test_operations_that_overlap_count_once_and_leave_spans_of_nothing():
    # 1-5 and 2-3 and 4-8: busy from 1 to 8.
    assert idle_spans_s(iteration((4, 8), (1, 5), (2, 3))) == (1, 0, 0, 2)


def test_spans_are_averaged_by_index_on_each_iterations_own_clock():
    first, second = iteration((1, 3), (6, 7)), iteration((103, 104), (105, 107), start_s=100, end_s=110)
    profile = profile_idle_spans([first, second])
    # Spans 1, 3, 3 and 3, 1, 3: means 2, 2, 3; deviations of 1 around 2, and none.
    assert profile == IdleProfile(spans_s=(2, 2, 3), deviations=(0.5, 0.5, 0))
    assert profile.total_s == 7


def test_spans_match_by_index_where_operations_overlap_in_one_iteration_alone():
    # Spans 0, 0, 6 where they overlap, and 0, 2, 4 where they do not.
    profile = profile_idle_spans([iteration((0, 3), (2, 4)), iteration((0, 2), (4, 6))])
    assert profile.spans_s == (0, 1, 5)
    assert profile.deviations == (0, 1, 0.2)


def test_an_iteration_with_another_number_of_operations_is_refused_by_name():
    with pytest.raises(ValueError, match="operations of 'iteration 7' are 1; it must have 2, as 'iteration 0' has"):
        profile_idle_spans([iteration((0, 1), (2, 3), name="iteration 0"), iteration((0, 1), name="iteration 7")])


def test_nothing_to_profile_is_refused():
    with pytest.raises(ValueError, match="iterations is empty"):
        profile_idle_spans([])


def test_ranks_have_the_least_span_of_each_and_the_largest_deviation():
    ranks = [IdleProfile(spans_s=(1, 5), deviations=(0.1, 0.0)), IdleProfile(spans_s=(2, 3), deviations=(0.0, 0.3))]
    assert least_spans(ranks) == IdleProfile(spans_s=(1, 3), deviations=(0.1, 0.3))


def test_a_rank_with_another_number_of_spans_is_refused():
    ranks = [IdleProfile(spans_s=(1, 5), deviations=(0, 0)), IdleProfile(spans_s=(2,), deviations=(0,))]
    with pytest.raises(ValueError, match="spans of rank 1 are 1; they must be 2"):
        least_spans(ranks)
    with pytest.raises(ValueError, match="profiles is empty"):
        least_spans([])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Operation(start_s=2, end_s=1), "end_s of 'Operation' is 1"),
        (lambda: Operation(start_s=float("nan"), end_s=1), "must be finite"),
        (lambda: iteration(start_s=3, end_s=2, name="late"), "end_s of 'late' is 2"),
        (lambda: iteration((9, 11), name="early"), "operations of 'early' has Operation.*must lie between 0.0"),
    ],
)
def test_times_out_of_order_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
