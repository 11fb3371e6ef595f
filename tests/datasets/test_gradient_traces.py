"""Espresso's recorded gradients, times and constants, against the numbers of its files and thesis."""

import pytest

from workbench.datasets import gradient_traces as traces


@pytest.mark.parametrize(
    ("model", "num_tensors", "size_mib"),  # thesis, tables 4.5 and 4.4; BERT-base has 207 and 420 there
    [("vgg16", 32, 528), ("resnet101", 314, 170), ("ugatit", 148, 2559), ("gpt2", 148, 475), ("lstm", 10, 328)]
    + [("bert_base", 199, 415)],
)
def test_models_have_the_published_counts_and_sizes(model, num_tensors, size_mib):
    made = traces.load(model)
    assert (made.num_tensors, round(made.total_bytes / 2**20)) == (num_tensors, size_mib)
    assert made.forward_s == pytest.approx(made.backward_s / 2) and "forward assumed" in made.source


def test_the_gradients_of_the_lstm_are_those_of_its_file():
    made = traces.load("lstm", forward_s=0.03)
    assert (made.tensors[1], made.num_elements[1], made.gap_s[:2]) == ("rnns.1.weight_ih_l0", 9_000_000, (0, 0.035223))
    assert made.backward_s == pytest.approx(0.071450) and made.forward_s == 0.03 and "assumed" not in made.source


def test_cpu_times_are_medians_over_undisturbed_runs_and_the_largest_size_is_of_one_run():
    dgc = traces.cpu_compression_times()["dgc"]
    at = dgc.num_elements.index(2**20)
    assert dgc.compress_s[at] == 0.002262  # median of 2.312, 2.262, 2.256 ms
    assert dgc.decompress_s[at] == 0.000202  # median of 0.211, 0.191, 0.202 ms
    assert dgc.num_elements == tuple(2**power for power in range(10, 27))
    disturbed = traces.cpu_compression_times((3,))
    assert list(disturbed) == ["dgc", "efsignsgd", "onebit", "randomk"]
    assert disturbed["dgc"].compress_s[at] == 0.005492 and disturbed["dgc"].num_elements[-1] == 2**25


def test_constants_thresholds_and_settings_are_those_of_the_files_in_si_units():
    one_level = traces.gpu_compression_constants()["efsignsgd", "one_level"]
    assert (one_level.encode_s, one_level.decode_s) == (0.00013, 0.00014)
    constants = traces.communication_constants()
    assert (constants["startup"], constants["inter"], constants["bandwidth_option_default"]) == (150e-6, 8e-10, 2.5e9)
    settings = traces.experiment_settings()
    assert (settings["vgg16"].algorithm, settings["vgg16"].batch_per_gpu) == ("randomk", 32)
    assert (settings["vgg16"].kept_ratio, settings["lstm"].kept_ratio) == (0.01, 1)
    assert (settings["lstm"].testbed, settings["lstm"].error_feedback_factor) == ("pcie", 0.5)


@pytest.mark.parametrize(  # num_tensors_compressed of baseline_thresholds.csv
    ("model", "baseline", "num_compressed"),
    [
        ("vgg16", "hipress", 2),
        ("bert_base", "hitopkcomm", 198),
        ("ugatit", "byteps-compress", 54),
        ("lstm", "hipress", 1),
    ],
)
def test_thresholds_compress_as_many_recorded_tensors_as_published(model, baseline, num_compressed):
    threshold = traces.baseline_thresholds()[model, baseline]
    assert sum(elements >= threshold for elements in traces.load(model).num_elements) == num_compressed
    assert traces.source("baseline_thresholds").is_real
