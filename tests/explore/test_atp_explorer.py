"""The lesson on meshes: the eight devices by hand, real ranks against one process, and the exercises."""

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from tests.cases import tidy
from workbench.explore import Standing
from workbench.explore import atp as lesson
from workbench.timeline import Kind


def test_without_a_touch_the_status_names_the_mesh_worked_by_hand():
    # 2 b s h values of 2 bytes are 134.2 MB. ATP-4: B1 = 2 / 4, B2 = 4/6 · 16: 7 / (2 B2) + 2 / (4 B1) is 1.328 s
    # for a GB, 178 ms. ATP-2: B1 = 4/6 · 2 / 2, B2 = 16: 7 / (4 · 16) + 2 / (2 · 2/3) is 1.609, 1.328 is 17.5 % less.
    assert lesson.MeshExplorer().status == (
        "ATP-4, the mesh (2, 4), is the fastest: 178 ms a layer, 17.5% less than ATP-2. "
        "No effect at these settings: start-up."
    )


def devices(**changes):
    first = {"hosts": 2, "between": 2, "inside": 16, "startup": 0, "batch": 4, "sequence": 2048, "hidden": 4096}
    return lesson.EightDevices(**first | {"exactly": False} | changes)


WINNERS = [
    ({"hosts": 1}, "ATP-1"),  # one switch
    ({"hosts": 8}, "ATP-1"),
    ({"hosts": 8, "exactly": True}, "ATP-2"),  # one ring leaves a device, equation 3 takes two
    ({"inside": 4}, "ATP-1"),  # ATP-4 needs more than 3.5 times the rate between hosts
    ({"hosts": 4}, "ATP-2"),
    ({"exactly": True, "startup": 100, "batch": 1, "sequence": 128, "hidden": 1024}, "ATP-2"),
]


def test_links_decide_the_winner():
    assert [devices(**changes).strategies[0].name for changes, _ in WINNERS] == [winner for _, winner in WINNERS]


@pytest.mark.parametrize(
    ("changes", "no_effect"), [({"hosts": 1}, "between, start-up"), ({"hosts": 8, "exactly": True}, "inside")]
)
def test_controls_without_effect_are_named(changes, no_effect):
    explorer = lesson.MeshExplorer().set(**changes)
    assert explorer.status.rstrip(".").endswith(f"No effect at these settings: {no_effect}")


def test_links_are_those_of_pairs_and_start_ups_the_steps_of_all_rings():
    assert devices(hosts=4).links[0].tolist() == [0, 16, 2, 2, 2, 2, 2, 2]
    # ATP-1: 4 all-reduces of 2 · 7 steps. ATP-2: 4 of 2 · 3; and 4 of 2, and 2 + 4 gathers and scatters of 1 step.
    times = devices(exactly=True, startup=5, hosts=1).times
    assert [round(times[f"ATP-{d2}"][2] / 5e-6) for d2 in (1, 2, 4)] == [56, 24 + 14, 8 + 42]


@pytest.mark.parametrize(("mesh", "along_1", "along_2"), [((4, 1), 48, 0), ((2, 2), 24, 48), ((1, 4), 0, 96)])
def test_two_linears_on_ranks_are_those_of_one_process_and_send_what_paper_says(pools, mesh, along_1, along_2):
    x, a, b = torch.arange(12.0).reshape(3, 4), torch.arange(32.0).reshape(4, 8) % 5, torch.arange(32.0).reshape(8, 4)
    for rank in pools(4).run(tidy, lesson.two_linears, *mesh, x, a, b):
        assert torch.equal(rank.output, x @ a @ b)
        assert torch.equal(rank.input_grad, torch.ones(3, 4) @ (a @ b).T)
        assert list(rank.sent_bytes.values()) == [along_1, along_1, along_2, along_2]


def test_a_watched_chunk_computes_three_times_around_two_messages_of_its_own(pools):
    for number, timeline in enumerate(pools(2).run(tidy, lesson.watched_forward, 2, batch=2, sequence=4, hidden=16)):
        computed, sent = (timeline.of(f"rank {number} {does}") for does in ("computes", "sends"))
        assert all(action.kind is Kind.COMMUNICATE for action in sent)
        assert sorted(action.label for action in sent) == ["chunk 0"] * 2 + ["chunk 1"] * 2
        assert [action.label for action in computed] == ["chunk 0", "chunk 1"] * 3
        assert all(before.end_s <= after.start_s for before, after in pairwise(computed))


def terms(h, d1, d2, b1, b2, swapped=False, crossed=False, always=False, six=False):
    n1, n2 = (d2, d1) if crossed else (d1, d2)
    first, second = (6 if six else 7) * h / n1 / b2, 2 * h / n2 / b1
    times = (first if d2 > 1 or always else 0, second if d1 > 1 or always else 0)
    return times[::-1] if swapped else times


@pytest.mark.parametrize("mistakes", [(), *[(name,) for name in lesson.TERM_HINTS], ("crossed", "always")])
def test_a_readers_terms_are_checked_and_usual_mistakes_get_their_hints(mistakes):
    feedback = lesson.check_terms(partial(terms, **dict.fromkeys(mistakes, True)))
    assert feedback.standing is (Standing.NOT_YET if mistakes else Standing.RIGHT)
    assert [name for name, hint in lesson.TERM_HINTS.items() if hint in feedback.text] == list(mistakes)


def test_a_readers_crossing_is_checked_and_usual_mistakes_get_their_hints():
    def right(h, d1, d2):
        return 7 * d2 / (2 * d1 * (d2 - 1))  # 2 / B1 = 7 / (d1 B2) + 2 / (d2 B1)

    wrong = (lambda *a: 1 / right(*a), lambda h, d1, d2: 3.5 / d1, lambda h, *mesh: h * right(h, *mesh), lambda *a: 3.0)
    assert lesson.check_crossing(right).standing is Standing.RIGHT
    texts = [lesson.check_crossing(answer).text for answer in wrong]
    hints = [[hint for hint in lesson.CROSSING_MISTAKES if hint in text] for text in texts]
    assert hints == [*([hint] for hint in lesson.CROSSING_MISTAKES), []]


def multiplied(x, a, b, axis1, axis2, sums=(2, 1), early=False):
    """Add over the axes of these numbers, or over all ranks; None is not at all."""
    groups = {1: axis1, 2: axis2, "all": None}
    parts = torch.relu(x @ a) if early else x @ a
    for axis, following in zip(sums, (lambda parts: torch.relu(parts) @ b, lambda parts: parts), strict=True):
        if axis is not None:
            dist.all_reduce(parts, group=groups[axis])
        parts = following(parts)
    return parts


def by_hand(x, a, b, axis1, axis2):
    """ReLU(X A) has the rows 5 0 0 3 0 5 0 0, 5 0 0 11 3 5 0 0 and 5 0 0 19 7 5 0 0."""
    whole = torch.tensor([[-3.0, -5, 8, -3], [-11, -2, 13, -11], [-19, 2, 17, -19]])
    return whole[:, :2] if dist.get_rank(axis2) == 0 else whole[:, 2:]


MULTIPLIED = [
    (by_hand, None),
    (multiplied, None),
    (partial(multiplied, sums=(1, 2)), "axes"),
    (partial(multiplied, early=True), "early"),
    (partial(multiplied, sums=(None, 1)), "first"),
    (partial(multiplied, sums=(2, None)), "second"),
    (partial(multiplied, sums=("all", "all")), "all"),
    (partial(multiplied, sums=(None, None)), "none"),
]


@pytest.mark.parametrize(("reader", "hint"), MULTIPLIED)
def test_a_readers_products_are_checked_on_ranks_and_usual_mistakes_get_their_hint(reader, hint, exercises_on_pools):
    feedback = lesson.check_feed_forward(reader)
    assert feedback.standing is (Standing.NOT_YET if hint else Standing.RIGHT)
    assert [name for name, text in lesson.SUM_HINTS.items() if text in feedback.text] == ([hint] if hint else [])
