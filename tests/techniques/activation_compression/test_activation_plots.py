"""The pictures of activation compression: parts of an iteration, speedups beside the paper's, singular values."""

import numpy as np
import pandas as pd
import pytest

from workbench import plots
from workbench.techniques.activation_compression import plots as pictures
from workbench.techniques.activation_compression.measured import beside_largest

SETTING = {"link": "slow", "nvlink": 0, "tp": 4, "pp": 1, "micro_batch": 4, "sequence": 128}
TIMES = {
    "iteration_ms": 100,
    "forward_ms": 50,
    "backward_ms": 40,
    "optimizer_ms": 3,
    "waiting_and_pipeline_ms": 7,
    "encode_ms": 2,
    "decode_ms": 1,
    "tensor_ms": 20,
    "tensor_waiting_ms": 4,
}
PUBLISHED = pd.DataFrame(
    [
        {"method": name, "tp": tp, "pp": 4 // tp, "nvlink": nvlink, "value": value}
        for name, tp, nvlink, value in (
            ("A1", 4, 0, 1.178),
            ("A2", 4, 0, 1.157),
            ("A1", 2, 0, 1.101),
            ("A1", 4, 1, 0.968),
        )
    ]
)


def speedup(method, value, **keys):
    common = {"quantity": "speedup", "method": method, **SETTING, "unit": "1"}
    return {**common, **keys, "value": value, "low": value - 0.01, "high": value + 0.01}


def test_the_parts_of_an_iteration_are_taken_out_of_forward_and_add_up_and_other_links_stay_out():
    rows = [
        {"quantity": name, "method": "A1", **SETTING, "link": link, "value": factor * ms, "unit": "ms"}
        for link, factor in (("slow", 1), ("carried over", 2))
        for name, ms in TIMES.items()
    ]
    parts = pictures.stacked_parts(rows, SETTING).set_index("part").time
    assert parts["forward computation"] == 50 - 2 - 1 - 20 - 4
    assert parts["waiting and pipeline"] == 4 + 7
    assert parts["tensor communication"] == 20
    assert parts.sum() == 100


def test_speedups_stand_beside_those_of_the_same_setting_and_variants_beside_nothing():
    table = pictures.speedups_beside_published(
        [speedup("A1", 1.15), speedup("A1 fused", 1.2)], SETTING, PUBLISHED
    ).set_index("method")
    assert table.published["A1"] == 1.178
    assert pd.isna(table.published["A1 fused"])
    assert (table.ours["A1"], table.low["A1"]) == (1.15, pytest.approx(1.14))


def test_the_papers_largest_speedup_stands_beside_ours_of_the_same_code_for_each_link_and_execution():
    rows = [
        speedup("A1", 1.15),
        speedup("A2", 1.3),
        speedup("A1 fused", 1.19),
        speedup("A1", 1.18, link="carried over"),
        speedup("A1", 1.4, tp=2, pp=2),
        speedup("A1", 0.9, link="fast", nvlink=1),
    ]
    found = beside_largest(rows, PUBLISHED)
    assert {(row["link"], row["execution"], row["of"]): row["value"] for row in found} == {
        ("slow", "as in the paper", "published"): 1.178,
        ("slow", "as in the paper", "measured"): 1.15,
        ("slow", "fused", "published"): 1.178,
        ("slow", "fused", "measured"): 1.19,
        ("carried over", "as in the paper", "published"): 1.178,
        ("carried over", "as in the paper", "measured"): 1.18,
    }
    assert all(row["low"] < row["value"] < row["high"] for row in found if row["of"] == "measured")
    assert beside_largest([speedup("A1", 1.1, tp=2, pp=2)], PUBLISHED) == []
    assert beside_largest([speedup("A1", 1.1)], PUBLISHED.drop(columns="nvlink")) == []


def test_a_setting_is_drawn_with_its_parts_and_its_speedups_beside_the_papers():
    rows = [{"quantity": name, "method": "A1", **SETTING, "value": ms, "unit": "ms"} for name, ms in TIMES.items()]
    _, axes = plots.figure(1, 2)
    pictures.draw_setting([*rows, speedup("A1", 1.15)], SETTING, PUBLISHED, axes=axes, legend=False)
    assert sum(bar.get_height() for bar in axes[0].patches) == 100
    assert [bar.get_height() for bar in axes[1].patches] == [1.178, 1.15]
    assert axes[0].get_title() == "TP 4, PP 1, slow links" and axes[0].get_legend() is None


def test_a_spectrum_starts_at_the_origin_and_is_the_mean_over_seeds_with_their_range():
    _, ax = plots.figure()
    pictures.draw_spectrum({"one": [[0.5, 1.0]], "two": [[0.6, 1.0], [0.8, 1.0]]}, ax=ax)
    line = next(line for line in ax.lines if line.get_label() == "two")
    np.testing.assert_allclose(line.get_xydata(), [[0, 0], [0.5, 0.7], [1, 1]])
    band = ax.collections[-1].get_paths()[0].vertices
    middle = band[np.isclose(band[:, 0], 0.5), 1]
    assert (middle.min(), middle.max()) == pytest.approx((0.6, 0.8))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two", "all values equal"]
    with pytest.raises(ValueError, match=r"curves\['one'\] has shape \(2,\); it must be \[seeds, K\]"):
        pictures.draw_spectrum({"one": [0.5, 1.0]}, ax=plots.figure()[1])
