"""Sums among some workers of a stage, against their definition, and their end."""

import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from workbench.parallel.replicas import Averager, Place, average_by_definition

LIMIT = timedelta(seconds=60)


@pytest.fixture(scope="module")
def ranks(pools):
    return pools(4)


def averaged(rounds, name):
    place = Place.of_this_rank(1)
    averager, by_round = Averager(place, torch.device("cpu"), name, LIMIT), []
    flat = torch.tensor([float(10**place.pipeline), 1.0])
    for members, is_kept in rounds:
        if place.pipeline in members:
            averager.sum_(flat, members, is_kept)
            flat /= len(members)
        by_round.append(flat.clone())
    count = len(averager._communicators)
    averager.close()
    return by_round, count


def test_members_average_as_defined_by_messages_and_by_communicators_of_their_own(ranks):
    rounds = [((0, 2), False), ((1, 3), True), ((0, 1, 3), True), ((2,), False), ((0, 2, 3), False), ((1, 3), True)]
    models = [torch.tensor([float(10**worker), 1.0]) for worker in range(4)]
    results = ranks.run(averaged, rounds, "a test")
    for number, (members, _) in enumerate(rounds):
        models = average_by_definition(models, members)
        for worker, (by_round, _) in enumerate(results):
            assert torch.allclose(by_round[number], models[worker])
        assert len({tuple(results[worker][0][number].tolist()) for worker in members}) == 1  # the same bits
    assert [count for _, count in results] == [1, 2, 0, 2]  # kept: {1, 3} and {0, 1, 3}


def left(kept):
    """Let the third member go while the others average, each of which goes when it knows."""
    place = Place.of_this_rank(1)
    averager = Averager(place, torch.device("cpu"), f"left {kept}", LIMIT)
    members, flat = (0, 1, 2), torch.ones(2)
    if kept and place.pipeline < 3:
        averager.sum_(flat, members, kept)
    began_s = time.monotonic()
    try:
        if place.pipeline < 2:
            averager.sum_(flat, members, kept)
        time.sleep(0.5)
        raise RuntimeError("it goes")
    except RuntimeError:
        waited_s = time.monotonic() - began_s
        averager.close()
        dist.barrier()  # no process ends
    return waited_s


@pytest.mark.parametrize("kept", [False, True])
def test_whoever_waits_for_a_member_that_is_gone_gets_an_error_at_once(ranks, kept):
    assert max(ranks.run(partial(left, kept), timeout_s=200)) < 30.0
