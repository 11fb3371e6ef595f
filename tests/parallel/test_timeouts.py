"""A group that a technique makes waits for its members as long as the group that it is made from."""

import ast
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import workbench
from tests.cases import tidy
from tests.lost_ranks import ENDINGS, errors_of_the_rest
from workbench.parallel import ProcessTensorGroup, pipeline
from workbench.parallel.hosts import host_groups
from workbench.parallel.timeouts import break_connections, group_beside, init_mesh, timeout_of

MAKING = {"new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group"}


def checkpoints():
    from workbench.techniques.gemini.measured.training import PoolContext
    from workbench.techniques.gemini.runtime.checkpoints import InMemoryCheckpoints

    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    context = PoolContext(dist.get_rank(), dist.get_world_size())
    kept = InMemoryCheckpoints(context, model, torch.optim.SGD(model.parameters(), lr=0.1))
    kept.close()
    context.close()


def averager():
    from workbench.techniques.sdpipe import synchronized

    stage = nn.Linear(2, 2)
    with synchronized(stage, torch.optim.SGD(stage.parameters(), lr=0.1), num_stages=2) as sdpipe:
        return [sdpipe.averager._everyone.options._timeout]


def summa():
    from workbench.techniques.atp.runtime.summa import SummaMesh

    SummaMesh(2, 1)


def atp_mesh():
    from workbench.techniques.atp.runtime.block import open_mesh

    open_mesh(2, 2)


def zen_hosts():
    from workbench.techniques import zen

    zen.SparseSynchroniser(dist.group.WORLD, ranks_per_host=2)


MAKERS = {
    "parallel.pipeline.open_mesh": lambda: pipeline.open_mesh(tensor=2, pipeline=2) and None,
    "atp.runtime.block.open_mesh": atp_mesh,
    "atp.runtime.summa.SummaMesh": summa,
    "zen.SparseSynchroniser": zen_hosts,
    "sdpipe.runtime.averaging.Averager": averager,
    "gemini.runtime.checkpoints.InMemoryCheckpoints": checkpoints,
}


def timeouts_of_new_groups(maker: str) -> tuple[timedelta, list[timedelta]]:
    groups = dist.distributed_c10d._world.pg_map
    before = set(groups)
    unlisted = MAKERS[maker]() or []  # communicators that torch does not list
    return timeout_of(), unlisted + [timeout_of(group) for group in set(groups) - before]


@pytest.mark.parametrize("maker", MAKERS)
def test_new_groups_have_the_timeout_of_the_job(pools, maker):
    for job, made in pools(4).run(tidy, timeouts_of_new_groups, maker):
        assert job != timedelta(minutes=30)  # torch's default, which would hide that it is taken
        assert made
        assert set(made) == {job}


def groups_of_a_group() -> list:
    short = timedelta(seconds=40)
    part = dist.new_group([0, 1], timeout=short)
    several = dist.new_group(backend="cpu:gloo,cuda:gloo", timeout=short)
    return [timeout_of(several), timeout_of(part)] if dist.get_rank() < 2 else []


def test_a_group_has_its_own_timeout(pools):
    assert pools(4).run(tidy, groups_of_a_group)[0] == [timedelta(seconds=40)] * 2


def neighbours() -> list:
    mesh = init_mesh("cpu", (2, 2), ("pair", "place"))
    members = [dist.get_process_group_ranks(mesh.get_group(name)) for name in ("pair", "place")]
    return [mesh.mesh.tolist(), members, init_mesh("cpu", (4,)).get_group() is dist.group.WORLD]


def test_a_mesh_has_the_groups_that_torchs_own_has(pools):
    # Of ranks [[0, 1], [2, 3]] an axis's group holds the ranks that differ along it alone.
    results = pools(4).run(tidy, neighbours)
    for rank, members in enumerate([[[0, 2], [0, 1]], [[1, 3], [0, 1]], [[0, 2], [2, 3]], [[1, 3], [2, 3]]]):
        assert results[rank] == [[[0, 1], [2, 3]], members, True]


def break_while_a_peer_sends() -> str:
    group, large = dist.new_group(), torch.ones(100_000)
    sending = group.send([large], 1, 0) if dist.get_rank() == 0 else None
    dist.barrier()  # of all: the message is on its way
    if sending is None:
        break_connections(group)
        dist.barrier()
        return "goes on"
    with pytest.raises(RuntimeError):
        sending.wait()
    dist.barrier()
    return "has an error"


def test_a_rank_that_breaks_its_connections_outlives_the_messages_that_it_was_sent(pools):
    assert pools(2).run(break_while_a_peer_sends) == ["has an error", "goes on"]


def test_no_call_makes_a_group_without_a_timeout():
    forgotten = []
    for path in Path(workbench.__file__).parent.rglob("*.py"):
        text = path.read_text()
        makes = any(name in text for name in (*MAKING, "init_device_mesh"))
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)) if makes else ():
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            given = any(keyword.arg in ("timeout", None) for keyword in call.keywords)
            if name == "init_device_mesh" or (name in MAKING and not given):
                forgotten.append(f"{path.name}:{call.lineno} {name}")
    assert forgotten == []


def one_more_sum(group, _) -> None:
    ProcessTensorGroup(group).sum([torch.ones(3)])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_rank_that_is_lost_is_named_by_all_others(ending):
    heard = errors_of_the_rest(one_more_sum, num_ranks=3)[ending]
    assert heard.keys() == {0, 2}
    for error in heard.values():
        assert error.startswith("RankLost: all_reduce: rank 1 does not answer, having raised, ended or stopped")


def espresso_groups():
    from workbench.techniques.espresso.runtime import Groups

    return Groups(2, 1)


TOGETHER = {
    "beside all": lambda: group_beside(dist.group.WORLD),
    "on hosts": lambda: host_groups(None, 1),
    "espresso": espresso_groups,
}


def opened_at(opening):
    """Return when this rank held the groups, and when the slower rank 1 had connected to the last of them."""
    create, connected_s = torch.distributed.distributed_c10d._new_group_with_tag, []

    def slowly(*args, **kwargs):
        group = create(*args, **kwargs)
        time.sleep(0.3 * dist.get_rank())
        connected_s.append(time.monotonic())
        return group

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed.distributed_c10d, "_new_group_with_tag", slowly)
        TOGETHER[opening]()
    return time.monotonic(), connected_s[-1]


@pytest.mark.parametrize("opening", TOGETHER)
def test_a_rank_that_closes_its_groups_at_once_does_not_close_them_on_a_rank_that_still_connects(pools, opening):
    (held_s, _), (_, connected_s) = pools(2).run(tidy, opened_at, opening)
    assert held_s > connected_s


def bound_devices():
    """Open a group beside one of some ranks; return the device of the job while it is opened, and afterwards."""
    job, seen, create = dist.group.WORLD, [], dist.new_group
    group = [dist.new_group([0, 1]), dist.new_group([2])][dist.get_rank() // 2]

    def watched(*args, **kwargs):
        seen.append(str(job.bound_device_id))
        return create(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "new_group", watched)
        job.bound_device_id = torch.device("cuda", 0)  # as init_process_group(device_id=...) does
        try:
            group_beside(group)
            return {*seen}, str(job.bound_device_id)
        finally:
            job.bound_device_id = None


def test_a_group_beside_one_of_some_ranks_is_not_split_from_the_job_for_which_nccl_asks_all_ranks(pools):
    assert pools(3).run(tidy, bound_devices) == [({"None"}, "cuda:0")] * 3
