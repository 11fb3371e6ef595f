"""Crippled spaces and benefit ratios by hand, and the paper's jobs on another testbed."""

import numpy as np
import pytest

from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.datasets import gradient_traces
from workbench.datasets.source import DataError
from workbench.techniques.espresso.cost import job_of, scaling_factor
from workbench.techniques.espresso.method import Option
from workbench.techniques.espresso.method.baselines import ALL, MYOPIC, ON_CPUS, ON_GPUS, SPACES, crippled_strategy
from workbench.techniques.espresso.method.job import Job
from workbench.techniques.espresso.method.search import find_strategy
from workbench.techniques.espresso.simulated import PANELS, benefit_ratios
from workbench.techniques.espresso.training import THRESHOLDS
from workbench.timeline.gradients import Gradients

INTER_ONLY = Option.parse("intra.reduce-scatter comp.gpu inter.allgather* decomp.gpu intra.allgather")


def job(num_elements, gap_s, options=None, startup_s=1e-4):
    """2 machines of 2 GPUs. A codec that takes 0.1 ms and 0.1 ns an element, twice as long on CPUs."""

    def seconds(factor):
        return lambda elements: factor * (startup_s + 1e-10 * np.asarray(elements))

    on = {Processor.GPU: seconds(1), Processor.CPU: seconds(2)}
    links = {name: Link(bandwidth_bytes_per_s=rate, latency_s=1e-4) for name, rate in (("intra", 1e10), ("inter", 1e9))}
    order = {"tensors": tuple(map(str, num_elements)), "num_elements": tuple(num_elements), "gap_s": tuple(gap_s)}
    return Job(
        Gradients(name="toy", forward_s=1e-3, source="a test", **order),
        Machines(num_machines=2, gpus_per_machine=2, **links),
        CodecTimes(name="test", encode_s=on, decode_s=on, sent_bytes=0.08),
        options,
    )


def test_the_benefit_ratio_by_hand():
    # n elements. FP32 between machines: 2 start-ups, 4 n bytes a card. Compressed: 1 start-up, 0.08 n bytes.
    # One message of n / 2 elements is compressed, two are decompressed.
    sizes = [10**4, 10**7]
    saved_s = [1e-4 + 3.92 * n / 1e9 for n in sizes]
    spent_s = [3 * (1e-4 + 1e-10 * n / 2) for n in sizes]
    expected = [saved / spent for saved, spent in zip(saved_s, spent_s, strict=True)]
    assert benefit_ratios(job(sizes, [0, 0]), INTER_ONLY).tolist() == pytest.approx(expected)


def test_myopic_compresses_each_tensor_from_the_size_on_where_alone_it_gains():
    # From above: 1e-4 + 3.92e-9 n = 3e-4 + 1.5e-10 n, at n = 53,050. That all but the last are hidden does not count.
    toy = job([52_000, 54_000, 10**6], [1.0, 1.0, 1.0], [INTER_ONLY])
    assert crippled_strategy(toy, MYOPIC) == (toy.uncompressed, INTER_ONLY, INTER_ONLY)
    assert [option.is_compressed for option in find_strategy(toy).strategy] == [False, False, True]


def test_all_compression_gives_every_tensor_an_option_that_compresses():
    toy = job([100, 10**7, 100], [1e-3, 1e-3, 1e-3], startup_s=1e-3)
    strategy = crippled_strategy(toy, ALL)
    assert all(option.is_compressed for option in strategy)
    assert toy.iteration_s(strategy) > find_strategy(toy).iteration_s
    alone = job([10**6], [1e-3])  # the best of all that compress
    best_s = min(alone.iteration_s([option]) for option in alone.options if option.is_compressed)
    assert alone.iteration_s(crippled_strategy(alone, ALL)) == pytest.approx(best_s)


@pytest.mark.parametrize("space", SPACES)
def test_a_crippled_space_has_its_options_and_no_compression(space):
    toy = job([10**6, 10**7], [1e-3, 1e-3])
    assert all(not option.is_compressed or SPACES[space](option) for option in crippled_strategy(toy, space))


def test_processors_of_crippled_spaces():
    toy = job([10**7, 10**7], [1e-3, 1e-3])
    for space, processor in ((ON_GPUS, Processor.GPU), (ON_CPUS, Processor.CPU)):
        assert {place for option in crippled_strategy(toy, space) for place in option.processors} == {processor}


def test_where_nothing_gains_a_strategy_compresses_nothing():
    toy = job([1000, 1000], [1e-3, 1e-3], startup_s=1.0)
    assert find_strategy(toy).strategy == (toy.uncompressed,) * 2


def test_calibrated_jobs_have_the_printed_factor_on_their_own_testbed_alone():
    try:
        own, other = job_of("lstm", 64), job_of("lstm", 64, testbed="nvlink")
    except DataError:
        pytest.skip("needs the authors' release")
    assert scaling_factor(own) == pytest.approx(0.46, abs=1e-6)
    assert other.gradients == own.gradients and scaling_factor(other) > 0.6


def test_panels_name_known_spaces():
    assert {space for pair in PANELS.values() for space in pair} == {ALL, MYOPIC, *SPACES}


def test_the_thresholds_of_small_models_are_the_releases_share_of_their_elements():
    models = {"bert": "bert_base", "gpt2": "gpt2", "vgg": "vgg16", "lstm": "lstm", "resnet": "resnet101"}
    try:
        elements = gradient_traces.baseline_thresholds()
    except DataError as missing:
        pytest.skip(str(missing))
    for small, model in models.items():
        total = sum(gradient_traces.load(model).num_elements)
        shares = {name: elements[model, name] / total for name in THRESHOLDS[small]}
        assert shares == pytest.approx(THRESHOLDS[small], rel=0.05)
