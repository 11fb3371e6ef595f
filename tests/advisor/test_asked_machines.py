"""Machines as the advisor takes them: a line of text, a file of links, or measured on ranks."""

import sys

import pytest
import torch
import torch.distributed as dist

from tests.processes_seen import run_python
from workbench.advisor import machines
from workbench.advisor.machines import machines_of
from workbench.advisor.question import ask
from workbench.cluster import Link, preset
from workbench.launch import Ranks, ShapedHosts

MISSING = ShapedHosts.missing()
TEXT = "2x8 H100, 400 Gbit/s"


def written(tmp_path, text):
    path = tmp_path / "links.toml"
    path.write_text(text)
    return str(path)


def test_a_file_changes_links_of_a_line_of_text_with_start_ups_that_the_planners_then_take(tmp_path):
    lines = f"machines = '{TEXT}'\nnetwork = {{gbit_per_s = 320, latency_us = 20}}"
    changed, plain = machines_of(written(tmp_path, lines)), preset(TEXT)
    assert (changed.network.bandwidth_bytes_per_s, changed.network.latency_s) == (40e9, pytest.approx(20e-6))
    assert (changed.host, changed.storage, changed.num_hosts) == (plain.host, plain.storage, 2)
    ours, assumed = ask("GPT-2", changed).cluster, ask("GPT-2", plain).cluster
    assert (ours.inter, ours.intra) == (changed.network, assumed.intra)


@pytest.mark.parametrize(
    ("lines", "refusal"),
    [
        ("machines = ", "cannot be read: Invalid value"),
        ("", "has no `machines`"),
        (f"machines = '{TEXT}'\n[link]", "has 'link'; it must be one of machines, device_link, network, storage"),
        (f"machines = '{TEXT}'\nnetwork = 3", "network must have gbit_per_s and latency_us, and nothing else"),
        (f"machines = '{TEXT}'\nstorage = {{gbit_per_s = 0, latency_us = 1}}", "storage: gbit_per_s is 0; it must be"),
        ("machines = '1x8 H100'\nnetwork = {gbit_per_s = 1, latency_us = 1}", "has a network, but '1x8 H100' is one"),
        ("machines = 'H100'", "machines is 'H100'; it must read like"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_part_that_is(tmp_path, lines, refusal):
    with pytest.raises(ValueError, match=r"links\.toml|machines is 'H100'") as refused:
        machines_of(written(tmp_path, lines))
    assert refusal in str(refused.value)


def test_a_file_that_is_missing_and_a_measurement_without_ranks_are_refused():
    with pytest.raises(ValueError, match=r"machines names nowhere\.toml, which cannot be read"):
        machines_of("nowhere.toml")
    with pytest.raises(ValueError, match=r"nothing to measure between: \d GPUs here, and no job. Start one: torchrun"):
        machines_of("measured")


@pytest.mark.parametrize(
    ("num_gpus", "ranks_here", "device"), [(2, None, "cuda"), (2, "2", "cuda"), (1, "2", "cpu"), (0, "2", "cpu")]
)
def test_what_is_measured_is_the_gpus_where_each_rank_has_one(monkeypatch, num_gpus, ranks_here, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(machines, "run_on_ranks", lambda _, num_ranks, device: [(num_ranks, device)])
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks_here is not None:  # a job of torchrun
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks_here)
        monkeypatch.setattr(machines, "size_of_job", lambda: 2)
    assert machines_of("measured") == (2, device)


@pytest.mark.skipif(MISSING is not None, reason=f"shaped hosts need {MISSING}")
def test_on_two_machines_the_network_is_the_link_that_the_ranks_of_a_machine_share():
    with Ranks(4, hosts=ShapedHosts(2, link=Link.gigabit()), preload=["workbench.advisor.machines"]) as ranks:
        first, *others = ranks.run(machines_of, "measured")
    assert all(other == first for other in others)
    assert (first.num_hosts, first.host.num_devices) == (2, 2)
    assert 0.5 < first.network.bandwidth_bytes_per_s / Link.gigabit().bandwidth_bytes_per_s < 1.3
    assert first.host.device_link.bandwidth_bytes_per_s > first.network.bandwidth_bytes_per_s
    assert first.name.startswith("2x2 CPU rank, measured: ")


def measured_on(names):
    """Measure as if each rank were on the machine of its name; return the refusal."""
    gathered = dist.all_gather_object
    dist.all_gather_object = lambda objects, _: objects.__setitem__(slice(None), names)
    try:
        machines_of("measured")
    except ValueError as error:
        return str(error)
    finally:
        dist.all_gather_object = gathered


@pytest.mark.parametrize("names", ["aab", "aba"])
def test_machines_with_unequal_numbers_of_ranks_or_ranks_that_take_turns_are_refused(pools, names):
    for refusal in pools(3).run(measured_on, list(names)):
        assert "3 ranks on 2 machines; each must have the same number, with consecutive ranks" in refusal


@pytest.mark.slow
def test_under_torchrun_one_rank_speaks():
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")
    command = "from workbench.cli import main; main()"
    done = run_python(*torchrun, sys.executable, "-c", command, "advise", "GPT-2", "--machines", "measured")
    assert done.stdout.count("GPT-2 on 1x2 CPU rank, measured: ") == 1
