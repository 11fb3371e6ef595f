"""Seconds of an iteration: worked by hand on a machine of round numbers, and its limits on the paper's machines."""

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from workbench.cluster import Link
from workbench.techniques.activation_compression.cost import (
    CALIBRATION,
    CodecCost,
    FittedMachine,
    PublishedCell,
    Setting,
    calibrate,
    calibration_cells,
    iteration_time,
    paper_machine,
)
from workbench.techniques.activation_compression.cost.machine import lists_population
from workbench.techniques.activation_compression.method import METHODS, Family

PUBLISHED = Path(__file__).parents[3] / "reproductions/activation_compression/published"
TABLES = ("table-2", "table-3", "table-4", "table-6", "table-7", "table-9", "table-12")
SMALL = {"micro_batch": 1, "sequence": 2, "hidden": 4, "layers": 2, "compressed_layers": 1, "value_bytes": 2}
# One layer of SMALL, forward: 24·2·16 + 4·2·2·4 = 832 FLOPs; one activation: 8 elements, 16 bytes.


def machine(**fields) -> FittedMachine:
    plain = {"name": "round numbers", "source": "worked by hand", "flops_per_s": 832.0, "overlap_power": 1.0}
    return FittedMachine(**{**plain, "link": Link(bandwidth_bytes_per_s=16.0), **fields})


def published(table: str) -> list[dict]:
    with (PUBLISHED / f"{table}.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["unit"] == "ms" or row["quantity"] == "exceeds_100_s"]


def cell_of(table: str, row: dict) -> PublishedCell:
    optional = {name: int(row[name]) for name in ("nvlink", "boundary") if row.get(name)}
    return PublishedCell(table, row["quantity"], row["method"], int(row["tp"]), int(row["pp"]), float(row["value"]), **optional)


# --- by hand


def test_one_rank_takes_flops_over_rate_forward_and_twice_that_backward():
    time = iteration_time(Setting(tp=1, pp=1, **SMALL), machine())
    assert (time.forward_s, time.backward_s, time.total_s) == (2.0, 4.0, 6.0)


def test_two_ranks_halve_the_flops_and_add_ring_all_reduces():
    # 2 layers, half a second each; 4 all-reduces of 16 bytes: 2·16·(1/2) bytes on 16 bytes/s, a second each, both ways.
    time = iteration_time(Setting(tp=2, pp=1, **SMALL), machine())
    assert (time.forward_s, time.tensor_s, time.backward_s) == (1.0 + 4.0, 4.0, 2.0 + 4.0)


def test_what_every_rank_repeats_does_not_shrink_with_the_ranks():
    repeating = machine(replicated_s_per_element=1 / 8)  # 8 elements: a second a layer
    assert iteration_time(Setting(tp=1, pp=1, **SMALL), repeating).forward_s == 2 * (1 + 1)
    assert iteration_time(Setting(tp=2, pp=1, **SMALL), repeating).forward_s == 2 * (0.5 + 1) + 4


def test_gathered_messages_are_decoded_once_a_rank_and_codes_once():
    costs = MappingProxyType({
        Family.TOP_K: CodecCost(encode_s_per_element=1 / 8, decode_s_per_element=2 / 8),
        Family.AUTOENCODER: CodecCost(encode_s_per_element=1 / 8, decode_s_per_element=2 / 8, backward_ratio=1.0),
    })  # fmt: skip
    sparse, code = (iteration_time(Setting(method=name, tp=2, pp=1, **SMALL), machine(codecs=costs)) for name in ("T1", "A1"))
    assert (sparse.encode_s, sparse.decode_s) == (2 * 1.0, 2 * 2 * 2.0)  # 2 messages of one layer
    assert (code.encode_s, code.decode_s) == (2 * 1.0, 2 * 2.0)
    # The code's backward pass takes what encoding and decoding took, and sums two gradients of 4·1 elements: 8 bytes each.
    plain = iteration_time(Setting(tp=2, pp=1, **SMALL), machine())
    assert code.backward_s == plain.backward_s + 6.0 + 2 * 8 / 16


def test_one_micro_batch_passes_the_stages_one_after_the_other_and_waits_for_its_two_messages():
    time = iteration_time(Setting(tp=1, pp=2, **SMALL), machine(handover_s=0.25))
    assert (time.forward_s, time.backward_s) == (2.0, 4.0)
    assert time.waiting_and_pipeline_s == 2 * (0.25 + 1.0)


def test_equal_stages_take_m_minus_one_plus_pp_slots():
    # Stages of 1 + 2 s; a link without limits; 4 micro-batches, 2 stages: 3 + 2 slots of 3 s.
    fast = machine(link=Link(bandwidth_bytes_per_s=1e30))
    assert iteration_time(Setting(tp=1, pp=2, num_micro_batches=4, **SMALL), fast).total_s == pytest.approx(5 * 3.0)


def test_the_slowest_stage_sets_the_pace_and_the_others_are_passed_once():
    # The head adds 1/2·logits on the last stage: 1·2·3 logits at 0.5 and 1 s: 3 + 6 = 9 s on top of 3 s.
    fast = machine(link=Link(bandwidth_bytes_per_s=1e30), head_forward_s_per_logit=0.5, head_backward_s_per_logit=1.0)
    time = iteration_time(Setting(tp=1, pp=2, num_micro_batches=4, vocabulary=3, **SMALL), fast)
    assert time.total_s == pytest.approx((3 + 12) + 3 * 12)
    assert (time.forward_s, time.backward_s) == pytest.approx((4 * 4.0, 4 * 8.0))
    assert time.waiting_and_pipeline_s == pytest.approx(3.0)


def test_a_full_pipeline_exchanges_both_directions_at_once():
    # Boundary messages take a second each way. Fill and drain: 2 s; 3 further slots: 3 s of stage and 1 s of exchange.
    time = iteration_time(Setting(tp=1, pp=2, num_micro_batches=4, **SMALL), machine())
    assert time.total_s == (3 + 3 + 2) + 3 * (3 + 1)


def test_an_all_reduce_across_two_hosts_puts_one_message_on_the_network():
    # TP 2 on 2 hosts: two trees, each half a message up and down: 16 bytes in series at 4 bytes/s, of which a half is reached.
    split = machine(network=Link(bandwidth_bytes_per_s=4.0), network_share=0.5)
    time = iteration_time(Setting(tp=2, pp=1, num_nodes=2, vocabulary=0, **SMALL), split)
    assert time.tensor_s == 4 * 16 / 2


def test_groups_of_a_host_use_the_connections_they_have():
    two = machine(connections=MappingProxyType({2: (1.0, 2.0)}))
    time = iteration_time(Setting(tp=2, pp=2, **SMALL), two)
    assert time.tensor_s == 2 * 1.0 + 2 * 0.5


def test_launching_adds_to_computing_or_hides_it():
    slow = machine(layer_launch_s=1.0)  # as long as the layer computes
    setting = Setting(tp=1, pp=1, **SMALL)
    assert iteration_time(setting, slow).forward_s == 4.0
    assert iteration_time(setting, replace(slow, overlap_power=math.inf)).forward_s == 2.0
    assert iteration_time(setting, replace(slow, overlap_power=2.0)).forward_s == pytest.approx(2 * math.sqrt(2))


class Noted(Sequence):
    """The numbers up to a size, counting how often one is asked for."""

    def __init__(self, size: int) -> None:
        self.size, self.asked = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index >= self.size:
            raise IndexError(index)
        self.asked += 1
        return index


@pytest.mark.parametrize(
    ("size", "sent"), [(100, 4), (100, 6), (64, 6), (4096, 400), (4096, 80), (16384, 1600), (20000, 1950), (1 << 16, 6400)]
)
def test_sampling_lists_the_population_where_cpython_does(size, sent):
    noted = Noted(size)
    random.Random(0).sample(noted, sent)
    assert noted.asked == (size if lists_population(size, sent) else sent)


def test_sampling_costs_each_index_and_the_list_of_all_where_there_is_one():
    cost = CodecCost(sample_s_per_sent=1.0, pool_s_per_element=0.1)
    assert cost.sample_s(4096, 80) == 80  # a set of 4^4 = 256 entries and 21 more
    assert cost.sample_s(4096, 400) == pytest.approx(400 + 409.6)  # 4^6 = 4096 entries: the list
    assert cost.sample_s(8192, 800) == pytest.approx(809.6)  # a set again, cheaper than half of it was: level
    assert cost.sample_s(4096, 0) == 0


# --- the paper's machines


def test_the_machines_are_those_that_the_published_files_give():
    wanted = {(cell.table, *sorted((name, str(key)) for name, key in cell.keys().items())) for cell in CALIBRATION}
    read = [cell_of(table, row) for table in TABLES for row in published(table) if row["quantity"] != "exceeds_100_s"]
    used = [cell for cell in read if (cell.table, *sorted((name, str(key)) for name, key in cell.keys().items())) in wanted]
    assert len(used) == len(CALIBRATION)
    assert calibrate(used) == calibrate(CALIBRATION)


def test_no_more_than_one_cell_in_five_calibrates_in_any_table_nor_in_all():
    counts = {table: (len(calibration_cells(table)), len(published(table))) for table in TABLES}
    for table, (used, printed) in counts.items():
        assert 5 * used <= printed, table
    assert 5 * sum(used for used, _ in counts.values()) <= sum(printed for _, printed in counts.values())
    assert sum(used for used, _ in counts.values()) == len(CALIBRATION)


def test_a_missing_cell_is_named():
    with pytest.raises(ValueError, match="tensor_ms of w/o at TP 4, PP 4 in table-7"):
        calibrate(CALIBRATION[:5])


@pytest.mark.parametrize(
    ("setting", "quantity", "milliseconds"),
    [
        (Setting(tp=1, pp=4), "total_s", 591.96),
        (Setting(tp=4, pp=1), "total_s", 261.48),
        (Setting(tp=4, pp=1, nvlink=False), "total_s", 736.01),
        (Setting(nvlink=False), "forward_s", 276.34),
        (Setting(nvlink=False), "tensor_s", 150.72),
        (Setting(method="T4", nvlink=False), "decode_s", 45.36),
        (Setting(method="R4", nvlink=False), "encode_s", 44038.56),
        (Setting(method="A2", nvlink=False), "waiting_and_pipeline_s", 4.07),
        (Setting(micro_batch=8, sequence=128), "total_s", 121.26),
        (Setting(tp=8, pp=2, micro_batch=128, sequence=128, num_micro_batches=8, num_nodes=4), "total_s", 15642.30),
    ],
)
def test_cells_that_calibrate_come_back_within_two_percent(setting, quantity, milliseconds):
    assert 1e3 * getattr(iteration_time(setting), quantity) == pytest.approx(milliseconds, rel=0.02)


def test_rates_stay_below_the_data_sheet_of_a_v100():
    for nvlink in (True, False):
        reached = paper_machine(nvlink=nvlink)
        assert 30e12 < reached.flops_per_s < 112e12
        assert 1e9 < reached.link.bandwidth_bytes_per_s < 25e9  # one NVLink; PCIe 3 has 15.75e9
        assert reached.replicated_s_per_element > 2 * 2 / 900e9  # reads and writes fp16 at least once


# --- limits and monotony


SWEEPS = {
    "micro_batch": [1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64, 128, 512],
    "sequence": [16, 32, 64, 128, 200, 256, 384, 512, 1024, 2048, 4096],
    "layers": [4, 8, 16, 24, 32, 48, 96],
    "hidden": [64, 256, 512, 768, 1024, 2048, 4096, 12288],
    "num_micro_batches": [1, 2, 4, 8, 64],
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("field", SWEEPS)
def test_more_never_takes_less(name, field):
    for nvlink in (True, False):
        for tp, pp in ((1, 4), (2, 2), (4, 1)):
            half = [{"compressed_layers": value // 2} if field == "layers" else {} for value in SWEEPS[field]]
            mesh = {"method": name, "tp": tp, "pp": pp, "nvlink": nvlink}
            settings = [Setting(**mesh, **share, **{field: value}) for share, value in zip(half, SWEEPS[field], strict=True)]
            times = [iteration_time(setting).total_s for setting in settings]
            assert all(0 < before <= after * (1 + 1e-12) < math.inf for before, after in zip(times, times[1:], strict=False)), times


@pytest.mark.parametrize("name", METHODS)
def test_the_parts_add_up_and_none_is_negative(name):
    for num_micro_batches in (1, 8):
        setting = Setting(method=name, tp=2, pp=4, num_micro_batches=num_micro_batches, micro_batch=3, sequence=77, num_nodes=2)
        time = iteration_time(setting)
        assert min(getattr(time, part) for part in time.__dataclass_fields__) >= 0
        assert time.encode_s + time.decode_s + time.tensor_s <= time.forward_s * (1 + 1e-9)
        parts = time.forward_s + time.backward_s + time.optimizer_s + time.waiting_and_pipeline_s
        assert time.total_s == pytest.approx(parts)


def test_nothing_compressed_is_no_compression():
    for name in METHODS:
        assert iteration_time(Setting(method=name, compressed_layers=0)).total_s == iteration_time(Setting()).total_s


def test_small_work_takes_its_launching_and_large_work_its_flops():
    small = [iteration_time(Setting(tp=1, pp=4, micro_batch=batch, sequence=16)).total_s for batch in (1, 2)]
    large = [iteration_time(Setting(tp=1, pp=4, micro_batch=batch)).total_s for batch in (512, 1024)]
    assert small[1] / small[0] == pytest.approx(1, abs=0.01)
    assert large[1] / large[0] == pytest.approx(2, abs=0.01)


def test_an_unlimited_link_leaves_compression_nothing_to_gain_and_a_slow_one_everything():
    unlimited, slow = (replace(paper_machine(nvlink=False), link=Link(bandwidth_bytes_per_s=rate)) for rate in (1e18, 1e8))
    code, plain = (Setting(method=name, tp=4, pp=1, nvlink=False) for name in ("A1", "w/o"))
    assert iteration_time(code, unlimited).total_s > iteration_time(plain, unlimited).total_s
    # Half of the forward messages shrink to 50/1024: 96 messages become 72 and 24 small ones.
    ratio = iteration_time(code, slow).total_s / iteration_time(plain, slow).total_s
    assert ratio == pytest.approx((72 + 24 * 50 / 1024) / 96, rel=0.01)


def test_a_setting_across_hosts_needs_a_network():
    with pytest.raises(ValueError, match="network=None"):
        iteration_time(Setting(tp=2, pp=2, num_nodes=2, nvlink=False))


@pytest.mark.parametrize(
    ("fields", "named"), [({"num_nodes": 3}, "num_nodes=3"), ({"vocabulary": -1}, "vocabulary=-1")]
)
def test_a_wrong_host_or_head_names_the_field(fields, named):
    with pytest.raises(ValueError, match=named):
        Setting(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"flops_per_s": 0.0}, "flops_per_s=0.0"), ({"layer_launch_s": -1.0}, "layer_launch_s=-1.0"), ({"overlap_power": 0.5}, "overlap_power=0.5")],
)
def test_a_wrong_machine_names_the_field(fields, named):
    with pytest.raises(ValueError, match=named):
        machine(**fields)
