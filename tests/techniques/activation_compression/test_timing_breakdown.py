"""Where an iteration's time went: timelines worked by hand, and two real ranks of which one is late."""

import time

import pytest

from workbench.launch import run_on_ranks
from workbench.parallel.recorded import RecordedTensorGroup
from workbench.techniques.activation_compression.timing import break_down
from workbench.timeline import Action, Kind, Recorder

pytestmark = pytest.mark.timeout(60)

KINDS = {
    "iteration": Kind.COMPUTE,
    "forward 0": Kind.FORWARD,
    "forward 1": Kind.FORWARD,
    "backward 0": Kind.BACKWARD,
    "backward 1": Kind.BACKWARD,
    "optimizer": Kind.OTHER,
    "all_reduce": Kind.COMMUNICATE,
    "encode mlp": Kind.ENCODE,
    "decode mlp": Kind.DECODE,
    "encode boundary.4": Kind.ENCODE,
}


def rank(number, *actions):
    return [
        Action(resource=f"rank {number}", start_s=start, end_s=end, kind=KINDS[label], label=label)
        for label, start, end in actions
    ]


def test_two_tensor_ranks_wait_until_the_later_one_enters_and_transfer_from_then_on():
    ranks = [
        rank(
            0,
            ("iteration", 0, 20),
            ("forward 0", 0, 8),
            ("encode mlp", 1, 2),
            ("all_reduce", 2, 7),
            ("decode mlp", 7, 8),
            ("backward 0", 8, 17),
            ("all_reduce", 10, 12),
            ("optimizer", 17, 19),
        ),
        rank(
            1,
            ("iteration", 1, 20),
            ("forward 0", 1, 8),
            ("encode mlp", 2, 4),
            ("all_reduce", 4, 7),
            ("decode mlp", 7, 8),
            ("backward 0", 8, 16),
            ("all_reduce", 9, 12),
            ("optimizer", 16, 20),
        ),
    ]
    found = break_down(ranks, tp=2)
    assert found.iteration_s == 20
    assert found.forward_s == 7.5  # 8 and 7
    assert found.backward_s == 8.5  # 9 and 8
    assert found.optimizer_s == 3  # 2 and 4
    assert found.waiting_and_pipeline_s == 1
    assert found.encode_s == 1.5  # 1 and 2
    assert found.decode_s == 1
    assert found.tensor_waiting_s == 1  # rank 0 enters at 2, rank 1 at 4: 2 and 0
    assert found.tensor_s == 3  # from 4 to 7 on both
    assert found.tensor_backward_s == 2  # from 10 to 12
    assert found.boundaries_s == ()


def test_stages_that_work_one_after_another_add_up_and_the_boundary_has_its_own_encoding():
    ranks = [
        rank(
            0,
            ("iteration", 0, 16),
            ("forward 0", 0, 3),
            ("encode boundary.4", 2, 3),
            ("backward 0", 11, 15),
            ("optimizer", 15, 16),
        ),
        rank(1, ("iteration", 0, 11), ("forward 0", 4, 6), ("backward 0", 6, 9), ("optimizer", 9, 11)),
    ]
    found = break_down(ranks, tp=1)
    assert (found.forward_s, found.backward_s, found.optimizer_s) == (5, 7, 2)
    assert found.waiting_and_pipeline_s == 16 - 5 - 7 - 2
    assert found.encode_s == 0
    assert found.boundaries_s == (1 + 2,)  # from 3 to 4 forward, from 9 to 11 backward


def test_with_two_micro_batches_a_boundary_counts_from_when_the_receiver_was_free_and_stages_are_averaged():
    ranks = [
        rank(
            0,
            ("iteration", 0, 20),
            ("forward 0", 0, 2),
            ("forward 1", 2, 4),
            ("backward 0", 14, 16),
            ("backward 1", 17, 19),
            ("optimizer", 19, 20),
        ),
        rank(
            1,
            ("iteration", 0, 20),
            ("forward 0", 3, 6),
            ("forward 1", 8, 10),
            ("backward 0", 10, 13),
            ("backward 1", 13, 16),
            ("optimizer", 16, 17),
        ),
    ]
    found = break_down(ranks, tp=1, num_micro_batches=2)
    assert found.forward_s == (4 + 5) / 2
    assert found.backward_s == (4 + 6) / 2
    # Forward: 2 to 3; the second was sent at 4 but its receiver was busy until 6: 6 to 8.
    # Backward: 13 to 14; the second was sent at 16, when the receiver was free: 16 to 17.
    assert found.boundaries_s == (1 + 2 + 1 + 1,)


LATE_S = 0.5


def one_late_sum():
    import torch
    import torch.distributed as dist

    recorder = Recorder(resource=f"rank {dist.get_rank()}")
    group = RecordedTensorGroup(recorder=recorder)
    dist.barrier()
    with recorder.during("iteration"), recorder.during("forward 0", Kind.FORWARD):
        time.sleep(LATE_S * dist.get_rank())
        group.sum([torch.ones(8)])
    return recorder.actions


def test_two_real_ranks_of_which_one_is_late_wait_and_hardly_transfer():
    found = break_down(run_on_ranks(one_late_sum, 2), tp=2)
    assert LATE_S / 4 < found.tensor_waiting_s < LATE_S  # rank 0 waits for the delay, rank 1 does not: the mean is half
    assert found.tensor_s < LATE_S / 4
    assert found.forward_s >= LATE_S / 2
