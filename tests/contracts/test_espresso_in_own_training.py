"""Espresso in trainings of its users' own; most tests that prove its cells are shared with Cupcake."""

from datetime import timedelta

import torch.distributed as dist

from tests.cases import tidy
from tests.contracts import test_hooks_lose_nothing  # noqa: F401
from tests.contracts.hooked import attach, early, net, one_pass
from tests.contracts.test_hooks_in_own_training import scaled
from tests.contracts.works_with import Feature, works
from workbench.parallel.timeouts import timeout_of
from workbench.techniques.espresso.method import Option

TWICE = "intra.reduce-scatter comp.gpu inter.alltoall* inter.allgather* decomp.gpu comp.gpu intra.allgather* decomp.gpu"


@works("espresso", Feature.GRADIENT_SCALING)
def test_all_that_is_remembered_of_a_gradient_that_is_compressed_twice_in_parts_follows_the_scale(pools):
    by_rank = pools(4).run(tidy, scaled, "espresso", "efsignsgd", place=(2, 2), option=Option.parse(TWICE))
    assert by_rank == [([True, True], 8192.0)] * 4


def timeouts():
    """Run on a rank: the timeout of the model's group, and those of the exchange's."""
    group = dist.new_group(timeout=timedelta(seconds=77))
    ours = early(net(), process_group=group)
    with attach("espresso", ours) as exchange:
        one_pass(ours, 0)
        return [timeout_of(made).total_seconds() for made, _ in exchange._groups._groups.values()]


def test_its_groups_wait_as_long_as_the_models(pools):
    assert pools(2).run(tidy, timeouts) == [[77.0] * 3] * 2
