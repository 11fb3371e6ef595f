"""The lesson on choosing what to compress: timelines of a reader's strategy, the search, the code exercise."""

import numpy as np
import pytest

from workbench.explore import Standing
from workbench.explore import espresso as lesson
from workbench.techniques.espresso.method import Option
from workbench.techniques.espresso.method.search import compress_on_gpus
from workbench.timeline import Kind

ALL_ON_GPUS = dict.fromkeys(("t0", "t1", "t2"), "GPU, Allgather")

SENT, SPANS = tuple(lesson.SENT_MISTAKES), tuple(lesson.SPAN_MISTAKES)


def hinted(feedback, mistakes):
    """Return the hint that a feedback ends with."""
    return next((hint for hint in mistakes if feedback.text.endswith(hint)), None)


def test_without_compression_f_is_worked_by_hand():
    # 16 MB. Inside: 3/4 of it at 20 GB/s, 0.6 ms and 0.02 ms to start, twice. Between: 4 GPUs send 2 * 3/4 of a quarter
    # each, 24 MB at 6.25 GB/s, 3.84 ms and twice 0.02 ms. Computed at 9 ms; the link is busy from 3.62 ms on.
    plain = lesson.compare(**dict.fromkeys(("t0", "t1", "t2"), lesson.NONE), gbit=50)
    assert plain.chosen.end_s == plain.plain_s == pytest.approx(3.62e-3 + 3 * 3.88e-3 + 0.62e-3)
    assert [action.kind for action in plain.chosen.of("CPU")] == []


def test_compressing_all_is_slower_than_none_on_a_fast_link_and_the_best_is_never_behind():
    slow, fast = (lesson.compare(**ALL_ON_GPUS, gbit=gbit) for gbit in (10, 100))
    assert slow.chosen.end_s < slow.plain_s and fast.plain_s < fast.chosen.end_s
    for compared in (slow, fast):
        assert compared.best.end_s <= min(compared.chosen.end_s, compared.plain_s)
    assert lesson.compare(**ALL_ON_GPUS, gbit=200).best_names == (lesson.NONE,) * 3
    assert slow.chosen.total_s(kind=Kind.DECODE) > 0


def test_the_status_says_f_and_how_far_it_is_from_the_best():
    explorer = lesson.explore_strategy()
    assert explorer.status.startswith("F = 13.26 ms, 1.20 times as fast as without compression; the best strategy")
    assert explorer.set(t0="CPU, Allgather").status.endswith("yours 0 % more.")


def test_the_search_step_by_step_ends_where_algorithm_4_1_does():
    draw = np.random.default_rng(0)
    for _ in range(12):
        sizes = [int(size) for size in draw.choice([500_000, 2_000_000, 4_000_000], 5)]
        job = lesson.toy_job(sizes, draw.uniform(0, 8e-3, 5).tolist(), float(draw.choice([10, 25, 100])))
        last = lesson.search_steps(job)[-1]
        assert last.strategy == compress_on_gpus(job, is_pruned=False).strategy


def test_a_step_says_what_was_tried_and_what_is_ruled_out():
    explorer = lesson.explore_search()
    assert explorer.status == (
        "No tensor was tried yet: F = 34.28 ms; compressed: none; ruled out, before a bubble: T0."
    )
    explorer.set(number=3)
    assert explorer.status == "T1 was tried: F = 20.72 ms; compressed: T1, T3, T5; ruled out, before a bubble: T0, T2."
    last = explorer.set(number=4).status
    assert explorer.set(number=5).status == f"{last.rstrip('.')}. No effect at these settings: step."


def test_a_tensor_of_the_search_is_tried_once_the_largest_and_latest_first():
    steps = lesson.search_steps(lesson.toy_job(*lesson.SEARCHED, 25))
    assert [step.tensor for step in steps] == [None, 5, 3, 1, 4]  # T0 and T2 are sent before bubbles


@pytest.mark.parametrize(
    ("sent_bytes", "hint"),
    [
        (lambda n, tensor_bytes, ratio: 2 * (n - 1) / n * ratio * tensor_bytes, None),
        (lambda n, tensor_bytes, ratio: (n - 1) * ratio * tensor_bytes, SENT[0]),
        (lambda n, tensor_bytes, ratio: 2 * (n - 1) / n * tensor_bytes, SENT[1]),
        (lambda n, tensor_bytes, ratio: 2 * ratio * tensor_bytes, SENT[2]),
        (lambda n, tensor_bytes, ratio: (n - 1) / n * ratio * tensor_bytes, SENT[3]),
        (lambda n, tensor_bytes, ratio: 0, None),
    ],
)
def test_a_readers_bytes_are_checked_and_usual_mistakes_get_their_hint(sent_bytes, hint):
    feedback = lesson.check_sent_bytes(sent_bytes)
    assert (feedback.standing is Standing.RIGHT) == (sent_bytes(4, 16, 0.5) == 12)  # 3 of 4 parts of 2 bytes, twice
    assert hinted(feedback, lesson.SENT_MISTAKES) == hint


def placed(begin):
    def spans(ready, option, free):
        scheduled = [(ready, ready)]
        for resource, slots in option:
            start = begin(ready, scheduled[-1][1], free[resource])
            scheduled.append((start, start + slots))
        return scheduled[1:]

    return spans


@pytest.mark.parametrize(
    ("begin", "hint"),
    [
        (lambda ready, ended, free: max(ended, free), None),
        (lambda ready, ended, free: max(ready, free), SPANS[0]),
        (lambda ready, ended, free: ended, SPANS[1]),
        (lambda ready, ended, free: ended + free, SPANS[2]),
        (lambda ready, ended, free: 0, None),
    ],
)
def test_a_readers_timeline_is_checked_and_usual_mistakes_get_their_hint(begin, hint):
    feedback = lesson.check_spans(placed(begin))
    example = placed(begin)(4, [("GPU", 1), ("between machines", 2), ("GPU", 1)], {"GPU": 4, "between machines": 7})
    assert (feedback.standing is Standing.RIGHT) == (example == [(4, 5), (7, 9), (9, 10)])  # as the lesson says
    assert hinted(feedback, lesson.SPAN_MISTAKES) == hint


def test_named_options_are_paths_of_the_tree():
    assert all(str(Option.parse(text)) == text for text in lesson.OPTIONS.values())
