"""The break-even explorer: starts at a machine's own numbers, and says what the cost model says."""

from dataclasses import replace

import pytest

from workbench.cluster import Link
from workbench.explore.activation_compression import explore_break_even
from workbench.explore.activation_compression.break_even import CODE_SIZES
from workbench.techniques.activation_compression.cost import (
    FittedMachine,
    Setting,
    break_even,
    paper_machine,
    speedup_at,
)


def test_it_begins_at_the_papers_machine_where_compression_pays():
    explorer, machine = explore_break_even(), paper_machine(nvlink=False)
    setting = Setting(method="A2", tp=4, pp=1)
    assert explorer.result.speedup == speedup_at(machine, setting, machine.link.bandwidth_bytes_per_s)
    assert explorer.result.chosen == break_even(machine, setting)
    assert explorer.status.startswith("Compression pays at batch 32, code of 100, 11 GB/s: 1.1")


def test_your_own_numbers_are_among_the_choices_and_chosen():
    link = Link(bandwidth_bytes_per_s=1.23e8, latency_s=1e-4)
    mine = FittedMachine(name="mine", source="a test", flops_per_s=3.21e10, link=link)
    explorer = explore_break_even(mine)
    assert (explorer.values["flops_per_s"], explorer.values["bandwidth_bytes_per_s"]) == (3.21e10, 1.23e8)
    assert explorer.result.speedup == pytest.approx(speedup_at(mine, Setting(method="A2", tp=4, pp=1), 1.23e8))


def test_every_control_changes_the_figure():
    explorer = explore_break_even()
    seen = {explorer.png}
    changes = (
        {"micro_batch": 4},
        {"sequence": 128},
        {"code_size": 400},
        {"bandwidth_bytes_per_s": 1e11},
        {"flops_per_s": 1e14},
        {"layer_launch_s": 0.0},
        {"codec_factor": 4.0},
        {"fused": True},
    )
    for change in changes:
        seen.add(explorer.set(**change).png)
    assert len(seen) == 1 + len(changes)
    assert explorer.status.startswith("Compression does not pay at batch 4, code of 400, 100 GB/s")


def test_dearer_encoding_never_raises_the_break_even():
    explorer = explore_break_even()
    found = [explorer.set(codec_factor=factor).result.chosen.bandwidth_bytes_per_s for factor in (0.25, 1.0, 4.0)]
    assert found == sorted(found, reverse=True)
    assert len(explorer.result.points) % len(CODE_SIZES) == 0


def test_a_machine_without_a_code_of_its_own_has_free_codes():
    free = replace(paper_machine(nvlink=False), codecs={})
    found = [
        explorer.result.chosen.bandwidth_bytes_per_s for explorer in (explore_break_even(free), explore_break_even())
    ]
    assert found[0] > found[1]


def test_a_fused_code_pays_over_faster_links():
    explorer = explore_break_even().set(code_size=400)
    plain, fused = (explorer.set(fused=choice).result.chosen.bandwidth_bytes_per_s for choice in (False, True))
    assert fused > plain
