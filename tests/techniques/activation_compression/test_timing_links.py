"""How a link is found on which communication takes a share: formulas worked by hand, and real ranks once."""

import pytest

from workbench.cluster import Link
from workbench.launch import ShapedHosts
from workbench.techniques.activation_compression.cost import Setting
from workbench.techniques.activation_compression.measured import (
    ShareOf,
    carried_over_share,
    measure_table,
    ranks_at_share,
)
from workbench.techniques.activation_compression.measured.links import (
    Trial,
    _by_link,
    _places,
    next_rate,
    share_row,
    slower_by,
)

pytestmark = pytest.mark.timeout(90)

MISSING = ShapedHosts.missing()
TINY = {"micro_batch": 2, "sequence": 8, "hidden": 32, "layers": 4, "compressed_layers": 2, "value_bytes": 4}


def test_the_share_at_tp_4_follows_from_that_of_table_4_at_tp_2():
    # 150.72 ms of 646.14 ms: communication 1.5 times 2 * 150.72 = 452.16, computing 344.70 / 2 = 172.35.
    found = carried_over_share(150.72 / 646.14, tp=2, to_tp=4)
    assert found == pytest.approx(226.08 / (452.16 + 172.35))
    assert found == pytest.approx(0.362, abs=5e-4)
    shares = [carried_over_share(0.2, tp=2, to_tp=ranks) for ranks in (2, 4, 8, 1000)]
    assert shares == sorted(shares) and shares[0] == pytest.approx(0.2) and shares[-1] < 0.5


def opened(share, **more):
    with ranks_at_share(share, **more, **TINY):
        pass


@pytest.mark.parametrize(
    ("refused", "rule"),
    [
        (lambda: carried_over_share(0.5, tp=2, to_tp=4), r"share is 0.5; it must be in 0 < share < 0\.5"),
        (lambda: carried_over_share(0.2, tp=2, to_tp=1), "to_tp is 1; it must be at least 2"),
        (lambda: opened(0.6), r"share is 0.6; it must be in 0 < share < 0\.5"),
        (lambda: opened(0.2, runs=1), "runs is 1; it must be at least 2"),
        (lambda: table(links=["quick"]), "'quick'"),
        (lambda: table(links=["slow"], share_mesh=[1, 2]), r"share_mesh is \(1, 2\)"),
    ],
)
def test_a_link_that_cannot_be_calibrated_is_refused_before_any_rank_starts(refused, rule):
    with pytest.raises(ValueError, match=rule):
        refused()


def test_a_link_becomes_as_much_slower_as_its_share_asks():
    # 10 of 100 ms forward, 20 in all: at 2.5 times the time 25 of 80 + 50 = 130, that is 5/26.
    assert slower_by(10, 20, 100, 25 / 130) == pytest.approx(2.5)
    assert slower_by(10, 20, 100, 0.1) == pytest.approx(1)
    assert slower_by(1, 50, 100, 0.4) == 10  # no link gives that at once
    assert next_rate([trial(50e6, 10, 20, 100)], 25 / 130) == pytest.approx(50e6 / 2.5)
    # A rate stays where shaped hosts can follow.
    assert next_rate([trial(2e6, 1, 1, 100)], 0.4) == 1e6
    assert next_rate([trial(1e9, 90, 95, 100)], 0.01) == 2e9


def trial(rate, part, communication, iteration):
    return Trial(
        bandwidth_bytes_per_s=rate,
        share=part / iteration,
        part_ms=part,
        communication_ms=communication,
        iteration_ms=iteration,
    )


def test_a_boundarys_share_is_that_of_its_bytes_over_the_links_rate():
    # 4 stages of 4 ranks on 4 hosts, 8 micro-batches, both directions: 4 * 8 * 2 messages of 4 * 32 * 256 * 4 = 131,072
    # bytes are 8,388,608; over 100 MB/s 83.9 ms; of 1 s.
    shape = {"micro_batch": 4, "sequence": 32, "hidden": 256, "layers": 4, "compressed_layers": 2, "value_bytes": 4}
    setting = Setting(tp=4, pp=4, num_micro_batches=8, **shape)
    rows = [{"quantity": "iteration_ms", "method": "w/o", "value": 1000, "low": 800, "high": 1200, "unit": "ms"}]
    link = Link(bandwidth_bytes_per_s=100e6, source="made up")
    found = share_row(rows, link, ShareOf.BOUNDARY, setting, num_hosts=4)
    assert found == pytest.approx({"value": 0.08388608, "low": 0.08388608 / 1.2, "high": 0.08388608 / 0.8})
    with pytest.raises(ValueError, match="tp is 2; it must be a multiple of the 4"):
        share_row(rows, link, ShareOf.BOUNDARY, Setting(tp=2, pp=8, **(shape | {"layers": 8})), num_hosts=4)


def affine(rate):
    """The part is 10 + 1000/MB/s, twice that is communication, the rest 100: 10 ms of copying no link makes shorter."""
    part = 10 + 1e9 / rate
    return trial(rate, part, 2 * part, 100 + 2 * part)


def test_the_third_rate_lies_on_the_line_through_two_trials_although_copying_does_not_scale():
    # A share of 0.25 asks for part = 0.25 (100 + 2 part), so part = 50 and 1000/rate = 40: 25 MB/s.
    assert next_rate([affine(40e6), affine(30e6)], 0.25) == pytest.approx(25e6)
    # Taken for proportional, the second trial would have overshot: part 43.3 to 50 is 1.154 times, 26 MB/s.
    assert next_rate([affine(30e6)], 0.25) == pytest.approx(26e6)


def test_trials_that_noise_turns_around_are_no_line():
    noisy = [trial(40e6, 50, 100, 200), trial(30e6, 40, 80, 200)]  # slower, and yet faster
    assert next_rate(noisy, 0.25) == next_rate(noisy[-1:], 0.25)
    close = [affine(30.3e6), affine(30e6)]  # 1 % apart: the difference would be noise
    assert next_rate(close, 0.25) == next_rate(close[-1:], 0.25)


def test_carried_over_links_are_for_more_tensor_parallel_ranks_alone():
    places = list(_places(["slow", "carried over", "fast"], [(1, 4), (2, 2), (4, 1)], 150.72 / 646.14, (2, 2)))
    assert [(place.link, place.meshes) for place in places] == [
        ("slow", ((2, 2), (1, 4), (4, 1))),
        ("carried over", ((4, 1),)),
        ("fast", ((1, 4), (2, 2), (4, 1))),
    ]
    assert [place.share for place in places] == [pytest.approx(0.2333, abs=1e-4), pytest.approx(0.362, abs=5e-4), None]


def table(**changes):
    asked = {
        "links": ["fast"],
        "batches": [[2, 8]],
        "share": 0.2,
        "share_of": "TENSOR",
        "share_mesh": [2, 1],
        "num_hosts": 2,
        "num_iterations": 6,
    } | changes
    sizes = {name: value for name, value in TINY.items() if name not in ("micro_batch", "sequence")}
    return measure_table(["w/o"], [[2, 1]], **asked, **sizes)


def test_speedups_of_several_links_stand_side_by_side_without_the_papers_key():
    rows = [
        {"quantity": "speedup", "link": link, "nvlink": int(link == "fast"), "value": value}
        for link, value in (("slow", 1.1), ("fast", 0.9))
    ]
    assert _by_link([*rows, {"quantity": "iteration_ms", "link": "slow", "value": 5}]) == [
        {"quantity": "speedup_by_link", "link": "slow", "value": 1.1},
        {"quantity": "speedup_by_link", "link": "fast", "value": 0.9},
    ]


@pytest.mark.skipif(MISSING is not None, reason=f"shaped hosts need {MISSING}")
def test_the_share_that_the_measurement_reached_is_told_beside_the_one_that_was_asked():
    found = table(links=["slow"])
    (calibration,) = found.calibrations
    assert calibration.of is ShareOf.TENSOR
    assert calibration.link.bandwidth_bytes_per_s == calibration.trials[-1].bandwidth_bytes_per_s
    (error,) = [row for row in found.rows if row["quantity"] == "share_error"]
    (share,) = [row for row in found.rows if row["quantity"] == "communication_share"]
    assert error["value"] == pytest.approx(share["value"] - 0.2)
    assert error["low"] <= error["value"] <= error["high"]
    assert (share["link"], share["nvlink"]) == ("slow", 0)
    assert found.hosts[0]["bandwidth_bytes_per_s"] == round(calibration.link.bandwidth_bytes_per_s)
