"""The lesson on what to fuse: cuts against the clock, and the exercises."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from workbench.explore import Standing
from workbench.explore import cupcake as lesson


def test_without_a_touch_each_tensor_is_by_itself_and_the_status_says_what_is_left():
    # T3 is encoded at 10 + 4 + 1.7 ms and sent in 3.5, then T4 in 1. As T0–1 and T2–3: at 10 + 2 + 1.7 ms, in 4, in 1.
    explorer = lesson.FusionExplorer()
    assert explorer.result.chosen == (1, 2, 3, 4, 5)
    assert explorer.status == "Yours takes 20.20 ms, the best 18.70 ms: 1.50 ms (7 %) are left."
    assert explorer.set(cut_0=False, cut_2=False).status == "Yours takes 18.70 ms, the best 18.70 ms: nothing is left."


def test_a_cut_that_makes_no_difference_is_named_and_buttons_say_what_they_do():
    explorer = lesson.FusionExplorer().set(cut_2=False)
    assert explorer.status.endswith("are left. No effect at these settings: T1.")
    row = [item.description or item.value for item in explorer.widget.children[0].children]
    assert row[:6] == ["T0: 8 MB", "cut", "T1: 2 MB", "cut", "T2: 1 MB", "fused"]


def reader(problem, before, j, k, startups=None, waits=True, prefix=False):
    startup_s = (startups or k) * problem.compress.startup_s
    encoded_s = problem.ready_s[j] + startup_s + problem.compress.s_per_byte * problem.until_bytes[j]
    sent = {i: problem.until_bytes[j] - (0 if prefix else problem.until_bytes[i]) for i in before}
    return min(max(encoded_s, waits * free_s) + problem.communicate(sent[i]) for i, free_s in before.items())


CASES = [({}, None), ({"startups": 1}, "startup"), ({"waits": False}, "link"), ({"prefix": True}, "bytes")]


@pytest.mark.parametrize(("mistake", "hint"), CASES)
def test_a_readers_recurrence_is_checked_by_brute_force_and_usual_mistakes_get_their_hint(mistake, hint):
    feedback = lesson.check_link_free(partial(reader, **mistake))
    assert feedback.standing is (Standing.NOT_YET if hint else Standing.RIGHT)
    assert [name for name, text in lesson.MISTAKES.items() if text in feedback.text] == ([hint] if hint else [])


def means(gradients, fusion, factor=2, group=lambda fusion: fusion, flat=False):
    """The ranks' gradients are 1, 2 and 3 times 1, 10, 100 and 1000: their means are 2 times as much."""
    for _ in group(fusion):
        dist.all_reduce(torch.zeros(1))
    averages = [torch.full_like(gradient, factor * 10.0**at) for at, gradient in enumerate(gradients)]
    return [average.flatten() for average in averages] if flat else averages


def unchanged(gradients, fusion):
    return gradients


MEANS = [
    (means, None),
    (partial(means, factor=6), "sum"),
    (unchanged, "own"),
    (partial(means, group=lambda fusion: range(4)), "layer-wise"),
    (partial(means, group=lambda fusion: "1"), "one group"),
    (partial(means, flat=True), "flat"),
]


@pytest.mark.parametrize(("reader", "hint"), MEANS)
def test_a_readers_fused_means_are_checked_on_ranks_and_usual_mistakes_get_their_hint(reader, hint, exercises_on_pools):
    feedback = lesson.check_fused_mean(reader)
    assert feedback.standing is (Standing.NOT_YET if hint else Standing.RIGHT)
    assert [name for name, text in lesson.FUSED_HINTS.items() if text in feedback.text] == ([hint] if hint else [])
