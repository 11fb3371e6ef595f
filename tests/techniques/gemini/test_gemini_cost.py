"""The cost model: its parts by hand, its limits and units, what it is fitted to and what it then says."""

import math
from dataclasses import replace

import pytest

from workbench.cluster import FittedMachine, Link
from workbench.techniques.gemini.cost import (
    agent_memory_bytes,
    baseline_s,
    calibrated,
    checkpoint_s,
    job_of,
    network_share_of,
    paper_machine,
    phases_of,
    storage_s,
    traffic_of,
    workload_named,
    workload_of,
)
from workbench.techniques.gemini.method.interleaving import Scheme, interleave, planning_spans_s
from workbench.techniques.gemini.method.recovery import Tier
from workbench.techniques.gemini.method.sizes import Family, ModelSizes, checkpoint_bytes
from workbench.timeline import Kind

# hidden 4, inner 16, one layer: 4·16 + 2·4·16 = 192 matrix parameters; batch 2 of 3 tokens.
SIZES = ModelSizes(
    family=Family.GPT_2, hidden_size=4, intermediate_size=16, num_layers=1, num_heads=1, vocab_size=10, max_positions=3
)
TINY = workload_of(SIZES, "tiny", batch=2, sequence=3)
TINY_FLOPS = 4 * 2592 + 1440  # a layer forward, forward again and backward; the head
CHECKPOINT_BYTES = checkpoint_bytes(TINY.num_parameters)


def machine(**changes) -> FittedMachine:
    network, link = Link(bandwidth_bytes_per_s=96.0), Link(bandwidth_bytes_per_s=1.0)
    rates = {"copy_bytes_per_s": 200.0, "storage_bytes_per_s": 10.0, "memory_bytes_per_s": 100.0}
    flops = {"flops_per_s": 1000.0, "peak_flops_per_s": 2000.0}
    whole = {"num_hosts": 2, "devices_per_host": 2, "network": network, "host_memory_bytes": 1e6, **rates, **flops}
    return FittedMachine(name="small", source="test", link=link, **whole | changes)


def test_a_model_of_the_table_has_the_parameters_and_flops_of_the_textbook():
    # 24·b·s·h² + 4·b·s²·h = 24·2·3·16 + 4·2·9·4 = 2304 + 288.
    assert TINY.layer_flops == 2592
    assert TINY.head_flops == 2 * 2 * 3 * 4 * 10
    # Token and position embeddings 52, biases and norms of the layer 9·4 + 16, the last norm 8.
    assert TINY.num_parameters == 192 + 52 + 52 + 8


def test_a_layer_is_gathered_twice_and_scattered_once():
    # 192 parameters in half precision are 384 bytes, of which 3/4 pass a machine's link of 96 bytes/s: 3 s.
    phases = phases_of(TINY, machine())
    forward, head, backward = phases.phases
    assert (forward.gather_s, forward.scatter_s, forward.compute_s, forward.kind) == (3, 0, 2.592, Kind.FORWARD)
    assert (backward.gather_s, backward.scatter_s, backward.compute_s) == (3, 3, pytest.approx(7.776))
    # The head has what the layer's matrices leave of the parameters.
    assert head.gather_s == head.scatter_s == 2 * (TINY.num_parameters - 192) * 0.75 / 96
    # The update reads and writes 28 bytes a parameter.
    assert phases.update_s == 28 * TINY.num_parameters / 4 / 100


def test_without_a_network_worth_the_name_an_iteration_is_its_messages_and_with_an_infinite_one_its_flops():
    slow = machine(network=Link(bandwidth_bytes_per_s=1e-3))
    per_byte_s = 0.75 / 1e-3
    messages_s = (3 * 384 + 2 * 2 * (TINY.num_parameters - 192)) * per_byte_s
    assert baseline_s(TINY, slow) == pytest.approx(messages_s, rel=1e-3)
    fast = machine(network=Link(bandwidth_bytes_per_s=1e12))
    assert baseline_s(TINY, fast) == pytest.approx(TINY_FLOPS / 1000 + phases_of(TINY, fast).update_s, rel=1e-6)


def test_faster_parts_never_make_an_iteration_longer():
    times_s = [baseline_s(TINY, machine(flops_per_s=rate)) for rate in (100, 1000, 10_000)]
    assert times_s == sorted(times_s, reverse=True)
    times_s = [baseline_s(TINY, machine().with_network(rate)) for rate in (1e-7, 1e-6, 1e-5)]
    assert times_s == sorted(times_s, reverse=True)


def test_a_checkpoint_passes_each_machines_link_once_a_remote_replica_and_storage_is_shared():
    shard = CHECKPOINT_BYTES / 2
    assert checkpoint_s(TINY, machine()) == pytest.approx(shard / 96)
    assert checkpoint_s(TINY, machine(num_hosts=4), num_replicas=3) == pytest.approx(2 * shard / 2 / 96)
    assert checkpoint_s(TINY, machine(), num_replicas=1) == 0
    # Copying slower than the network limits it.
    assert checkpoint_s(TINY, machine(copy_bytes_per_s=48.0)) == pytest.approx(shard / 48)
    assert storage_s(TINY, machine()) == storage_s(TINY, machine(num_hosts=16)) == CHECKPOINT_BYTES / 10
    # An agent keeps two buffers for each of two replicas.
    assert agent_memory_bytes(TINY, machine()) == 2 * 2 * shard


def test_tiers_are_slower_in_the_order_in_which_they_are_tried():
    late = machine(network=Link(bandwidth_bytes_per_s=96.0, latency_s=0.5))
    job = job_of(TINY, late)
    assert job.retrieval_s(Tier.LOCAL) == 0
    assert job.retrieval_s(Tier.PEER) == 0.5 + CHECKPOINT_BYTES / 2 / 96
    assert job.retrieval_s(Tier.STORAGE) == storage_s(TINY, late)
    assert job.iteration_s == baseline_s(TINY, late)


def test_a_device_of_gpt_2_100b_has_9_4_gb_of_a_checkpoint():
    found = traffic_of(workload_named("GPT-2 100B"), calibrated().p4d)
    assert found.checkpoint_bytes == pytest.approx(9.4e9, rel=0.005)  # section 6.5.2
    assert (found.reserved_bytes, found.num_buffers) == (128 * 2**20, 4)  # section 6.7.1 and 6.7.4


def test_the_model_meets_the_three_numbers_that_it_is_fitted_to():
    found, large, small = calibrated(), workload_named("GPT-2 100B"), workload_named("GPT-2 40B")
    assert baseline_s(large, found.p4d) == pytest.approx(62, rel=1e-6)
    slow = found.p4d.with_network(100)
    assert storage_s(large, slow) / checkpoint_s(large, slow) == pytest.approx(65, rel=1e-9)
    parts, traffic = phases_of(small, found.p3dn), traffic_of(small, found.p3dn)
    blocking, plain = (
        interleave(parts.phases, traffic, scheme, update_s=parts.update_s).iteration_s
        for scheme in (Scheme.BLOCKING, Scheme.BASELINE)
    )
    assert blocking / plain == pytest.approx(1.101, rel=1e-6)


def test_fitted_shares_are_shares():
    found = calibrated()
    # Nominal rates give 16 · 100 / 20 = 80 times; 65 of these are 81 %.
    assert found.network_share == pytest.approx(65 / 80, rel=1e-3)
    assert 0 < found.p4d.flops_per_s / found.p4d.peak_flops_per_s < 1
    assert 0 < found.p3dn.flops_per_s / found.p3dn.peak_flops_per_s < 1
    share = found.p4d.flops_per_s / found.p4d.peak_flops_per_s
    assert found.transferred.flops_per_s == share * found.p3dn.peak_flops_per_s


def test_idle_spans_of_the_paper_s_machines_carry_the_checkpoint():
    found, workload = calibrated(), workload_named("GPT-2 100B")
    spans_s = planning_spans_s(phases_of(workload, found.p4d).phases)
    assert len(spans_s) == 3 * 124 + 2 + 1  # layers gathered twice, scattered once; the head; the end
    assert math.fsum(spans_s) > checkpoint_s(workload, found.p4d)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper_machine("zen/16x-v100-25gbps"), "storage_bytes_per_s of machine .* is None; it must be known"),
        (lambda: workload_named("GPT-5"), "model is 'GPT-5'; it must be one of 'GPT-2 10B'"),
        (lambda: replace(TINY, batch=0), "batch is 0"),
        (lambda: traffic_of(TINY, machine(), num_replicas=3), r"num_replicas is 3; it must be in 1..2"),
        (lambda: agent_memory_bytes(TINY, machine(), num_replicas=0), "num_replicas is 0"),
        (lambda: network_share_of(TINY, machine(), 1e9), "reduction is 1000000000.0; the whole bandwidth"),
        (lambda: network_share_of(TINY, machine(), 0.0), "reduction is 0.0"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
