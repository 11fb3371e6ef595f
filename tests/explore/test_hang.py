"""The lesson on hangs: who waits is read from a failed run, and each usual wrong repair gets its hint."""

import contextlib
import sys
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from workbench.explore import Standing, hang
from workbench.launch import RankFailed

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as from a notebook: ranks import no test


def summed(*numbers):
    total = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


def once_a_batch(losses):
    means = [summed(loss)[0] / 3 for loss in losses]
    return sum(means) / len(means)


def barrier_at_the_end(losses):
    mean = once_a_batch(losses)
    dist.barrier()
    return mean


def skipped_without_a_batch(losses):
    if not losses:
        return 3.0
    total, number = summed(sum(losses), len(losses))
    return total / number


def mean_of_means(losses):
    return summed(sum(losses) / len(losses))[0] / 3


def up_to_the_longest(losses):
    padded = losses + [0.0] * (2 - len(losses))
    return sum(summed(loss)[0] for loss in padded) / 6


def only_the_first(losses):
    return summed(losses[0])[0] / 3


def of_this_rank(losses):
    return sum(losses) / len(losses)


def divided_too_early(losses):
    number = summed(len(losses))[0]
    return summed(sum(losses) / len(losses) * len(losses))[0] / number


def sleeping(losses):
    time.sleep(60.0)


@pytest.mark.parametrize(
    ("repair", "hint"),
    [
        (once_a_batch, "must not depend on how many batches"),
        (barrier_at_the_end, "to different collectives"),
        (skipped_without_a_batch, "nothing to add, and still it has to come"),
        (mean_of_means, "counts as much as the others"),
        (up_to_the_longest, "Batches that nobody has"),
        (only_the_first, "left out"),
        (of_this_rank, "no sum over all ranks"),
        (divided_too_early, "divides by its number of batches"),
        (lambda losses: summed(sum(losses))[0], "Each batch counts once"),
        (lambda losses: losses[5], "IndexError"),
        (sleeping, "has not returned within 4 s"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_usual_wrong_repair_gets_its_hint(repair, hint, pools, monkeypatch):
    monkeypatch.setattr(hang, "Ranks", lambda num_ranks, **_: contextlib.nullcontext(pools(num_ranks)))
    monkeypatch.setattr(hang, "TIMEOUT_S", 4.0)
    feedback = hang.check_mean_loss(repair)
    assert feedback.standing is Standing.NOT_YET
    assert hint in feedback.text


def rank_1_leaves():
    if dist.get_rank() != 1:
        dist.barrier()


def test_who_waits_names_the_rank_that_has_returned_and_the_line_on_which_others_wait(pools):
    with pytest.raises(RankFailed) as failed:
        pools(3).run(rank_1_leaves, timeout_s=4.0)
    waiting = hang.who_waits(failed.value, 3)
    assert waiting.state.tolist() == ["waits in barrier", "has returned", "waits in barrier"]
    assert waiting.line.tolist() == ["dist.barrier()", "", "dist.barrier()"]
