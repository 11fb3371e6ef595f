"""Costs worked by hand, F(S) against a simulation by definition, and algorithms 4.1 and 4.2 against brute force."""

from itertools import product

import numpy as np
import pytest

from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor, interpolated
from workbench.techniques.espresso.method import Option, compression_options
from workbench.techniques.espresso.method.baselines import BASELINES, SPACES, baseline_strategy, options_of
from workbench.techniques.espresso.method.certificate import lower_bound_s
from workbench.techniques.espresso.method.job import Job, steps_of
from workbench.techniques.espresso.method.search import compress_on_gpus, find_strategy, improve, offload, offloaded
from workbench.timeline.gradients import Gradients
from workbench.timeline.queues import queues_by_definition

ON_GPUS = [o for o in compression_options() if o.is_compressed and o.processors == {Processor.GPU}]
INTER_ONLY = "intra.reduce-scatter comp.gpu inter.allgather* decomp.gpu intra.allgather"


def codec(startup_s=1e-4, s_per_element=1e-10, sent_bytes=0.08, cpu_factor=20.0):
    def on(factor):
        return {Processor.GPU: factor, Processor.CPU: lambda elements: cpu_factor * factor(elements)}

    def seconds(elements):
        return startup_s + s_per_element * elements

    return CodecTimes(name="test", encode_s=on(seconds), decode_s=on(seconds), sent_bytes=sent_bytes)


def machines(num_machines=2, gpus=2, inter_bytes_per_s=1e9):
    links = {
        "intra": Link(bandwidth_bytes_per_s=1e10, latency_s=1e-5),
        "inter": Link(bandwidth_bytes_per_s=inter_bytes_per_s, latency_s=1e-4),
    }
    return Machines(num_machines=num_machines, gpus_per_machine=gpus, **links)


def job(num_elements, gap_s, **more):
    names = tuple(f"t{number}" for number in range(len(num_elements)))
    order = {"tensors": names, "num_elements": tuple(num_elements), "gap_s": tuple(gap_s)}
    gradients = Gradients(name="toy", forward_s=1e-3, source="a test", **order)
    return Job(gradients, more.pop("machines", machines()), more.pop("codec", codec()), **more)


def random_job(seed, num_tensors=3):
    draw = np.random.default_rng(seed)
    sizes = draw.choice([10**4, 10**6, 3 * 10**6], num_tensors)
    return job([int(size) for size in sizes], draw.uniform(0, 4e-3, num_tensors))


def test_a_plain_hierarchical_all_reduce_by_hand():
    # 3 machines of 2 GPUs. Inside: half of the tensor. Between: 2 GPUs send 2 (3 - 1) / 3 of a half each.
    steps = steps_of(Option.parse("intra.reduce-scatter inter.allreduce intra.allgather"), 3, 2)
    assert [(step.resource, step.kind, step.part * step.times) for step in steps] == [
        (2, "send", pytest.approx(1 / 2)),
        (3, "send", pytest.approx(4 / 3)),
        (2, "send", pytest.approx(1 / 2)),
    ]


def test_a_compressed_tensor_by_hand():
    # Each of 2 GPUs compresses a half, gets it from 2 other machines, and decodes 3 messages of a half.
    steps = steps_of(Option.parse(INTER_ONLY), 3, 2)
    assert [(step.resource, step.kind, step.times, step.part) for step in steps] == [
        (2, "send", 0.5, 1.0),
        (0, "encode", 1, 0.5),
        (3, "send compressed", 2.0, 1.0),
        (0, "decode", 3, 0.5),
        (2, "send", 1.0, 0.5),
    ]
    # On the CPU: the messages of both GPUs.
    steps = steps_of(offloaded(Option.parse(INTER_ONLY)), 3, 2)
    assert [(step.times, step.part) for step in steps if step.resource == 1] == [(2, 0.5), (6, 0.5)]


def test_on_one_machine_all_communication_is_inside_of_it():
    (step,) = steps_of(Option.parse("flat.allreduce"), 1, 4)
    assert (step.resource, step.times, step.startups) == (2, 1.5, 2)
    for option in compression_options():
        assert all(step.times == 0 for step in steps_of(option, 1, 4) if step.resource == 3)


def test_f_is_that_of_a_simulation_by_definition():
    draw = np.random.default_rng(0)
    for seed in range(30):
        toy = random_job(seed, 5)
        strategy = [compression_options()[number] for number in draw.integers(0, 4341, 5)]
        chains = [toy.chain(option, size) for option, size in zip(strategy, toy.gradients.num_elements, strict=True)]
        placed = queues_by_definition(toy.gradients.gap_s, chains)
        last_s = max(end_s for tasks in placed for _, end_s in tasks)
        assert toy.iteration_s(strategy) == pytest.approx(1e-3 + last_s)


def test_the_only_tensor_gets_the_best_option_of_all():
    for size in (10**4, 10**6, 10**7):
        toy = job([size], [1e-3])
        best_s = min(toy.iteration_s([option]) for option in [toy.uncompressed, *ON_GPUS])
        assert compress_on_gpus(toy).iteration_s == pytest.approx(best_s)


def test_looking_at_fewer_options_finds_better_strategies_more_often_than_worse_ones():
    # Of options that are equally fast for one tensor, a slower one in all tasks leaves less room for the next tensors.
    ratios = []
    for seed in range(40):
        toy = random_job(seed, 6)
        pruned, whole = compress_on_gpus(toy), compress_on_gpus(toy, is_pruned=False)
        ratios.append(pruned.iteration_s / whole.iteration_s)
        assert pruned.num_evaluated <= whole.num_evaluated
    assert sum(ratio < 1 - 1e-9 for ratio in ratios) > sum(ratio > 1 + 1e-9 for ratio in ratios)
    assert max(ratios) < 1.1


def test_no_search_beats_brute_force_and_none_is_behind_no_compression():
    few = [Option.parse(INTER_ONLY), Option.parse("comp.gpu flat.allgather* decomp.gpu")]
    for seed in range(12):
        toy = random_job(seed, 4)
        toy.options = tuple(few)
        choices = [toy.uncompressed, *few]
        best_s = min(toy.iteration_s(strategy) for strategy in product(choices, repeat=4))
        found = compress_on_gpus(toy)
        assert best_s - 1e-12 <= found.iteration_s <= toy.iteration_s([toy.uncompressed] * 4)
        assert found.iteration_s == pytest.approx(toy.iteration_s(found.strategy))


def test_offloading_traverses_all_numbers_of_tensors_of_a_group():
    for seed in range(8):
        toy = job([10**6] * 4, np.random.default_rng(seed).uniform(0, 1e-3, 4), codec=codec(cpu_factor=2.0))
        on_gpus = [Option.parse(INTER_ONLY)] * 4
        moved = [[offloaded(option) for option in on_gpus[:n]] + on_gpus[n:] for n in range(5)]
        found = offload(toy, on_gpus)
        assert found.is_traversed and found.num_evaluated == 5
        assert found.iteration_s == pytest.approx(min(map(toy.iteration_s, moved)))


def test_tensors_sent_before_a_bubble_stay_uncompressed():
    # The first tensor is synchronised long before the second is ready (figure 4.9).
    toy = job([10**6, 10**6], [1e-3, 0.5])
    found = find_strategy(toy)
    assert found.strategy[0] == toy.uncompressed and found.strategy[1].is_compressed


def test_bad_input_is_named():
    toy = random_job(0)
    with pytest.raises(ValueError, match="strategy has 1 options; it must have one for each of the 3 tensors of toy"):
        toy.iteration_s([toy.uncompressed])
    with pytest.raises(ValueError, match="encode_s of broken has no cost on cpu"):
        CodecTimes(name="broken", encode_s={Processor.GPU: abs}, decode_s={}, sent_bytes=1.0)


def test_measured_times_are_level_below_and_in_proportion_above():
    seconds = interpolated([100, 200], [1.0, 3.0])
    assert [float(seconds(size)) for size in (10, 150, 400)] == [1.0, 2.0, 6.0]


@pytest.mark.parametrize("space", SPACES)
def test_crippled_spaces_are_parts_of_the_tree(space):
    assert 0 < len(options_of(space)) < 4340
    assert all(option.is_compressed for option in options_of(space))


def test_alltoall_twice_decompresses_between():
    assert all("intra.alltoall* decomp" in str(option) for option in options_of("Alltoall+Alltoall"))


def test_baselines_compress_from_a_size_on():
    toy = job([10, 10**6], [1e-3, 1e-3])
    strategy = baseline_strategy(toy, BASELINES["hipress"], 1000)
    assert [option.is_compressed for option in strategy] == [False, True]


def test_the_lower_bound_is_below_the_best_of_all_strategies():
    few = [Option.parse(INTER_ONLY), Option.parse("comp.cpu flat.allgather* decomp.gpu")]
    for seed in range(12):
        toy = random_job(seed, 4)
        toy.options = tuple(few)
        best_s = min(toy.iteration_s(strategy) for strategy in product([toy.uncompressed, *few], repeat=4))
        assert 0.5 * best_s < lower_bound_s(toy) <= best_s + 1e-9
    alone = job([10**6], [1e-3], options=few)  # one tensor's bound is its best option
    best_s = min(alone.iteration_s([option]) for option in [alone.uncompressed, *few])
    assert lower_bound_s(alone) == pytest.approx(best_s)


def test_fp16_sends_half_as_much_and_casts():
    plain = job([10**7], [1e-3])
    sent_s = plain.iteration_s([plain.uncompressed]) - 2e-3
    startups_s = 2 * 1e-5 + 2 * 1e-4
    assert plain.half_precision_s(1e-5) == pytest.approx(2e-3 + 2e-5 + startups_s + (sent_s - startups_s) / 2)


def test_further_passes_end_where_no_single_change_gains_and_never_lose():
    for seed in range(8):
        toy = random_job(seed, 5)
        toy.options = tuple(Option.parse(text) for text in (INTER_ONLY, "comp.gpu flat.allgather* decomp.gpu"))
        before = find_strategy(toy)
        after = improve(toy, before.strategy)
        assert after.iteration_s <= before.iteration_s
        assert after.iteration_s == pytest.approx(toy.iteration_s(after.strategy))
        for tensor, option in product(range(5), [toy.uncompressed, *toy.options]):
            changed = [*after.strategy[:tensor], option, *after.strategy[tensor + 1 :]]
            assert toy.iteration_s(changed) > after.iteration_s - 1e-12
