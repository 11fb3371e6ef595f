"""Checkpoint and retrieval times by tier: pacing, plans, rows worked by hand, and one short run on real ranks."""

import pytest

from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.measured.tiers import TierTimes, hidden_from, measure_tiers, paced, tier_rows
from workbench.techniques.gemini.measured.training import Size
from workbench.techniques.gemini.method.recovery import Tier

TINY = Size(hidden=16, layers=1, heads=2, vocab=32, sequence=8, batch=2, dropout=0.0)


def slept(body_s: float) -> list[float]:
    """Pace a body of some seconds to 100 bytes at 50 bytes/s, on a clock of its own."""
    times, sleeps = iter([10.0, 10.0 + body_s]), []
    with paced(100, 50.0, clock=lambda: next(times), sleep=sleeps.append):
        pass
    return sleeps


def test_pacing_adds_what_is_missing_and_nothing_to_what_takes_longer_by_itself():
    assert slept(0.5) == [pytest.approx(1.5)]
    assert slept(2.5) == []


def test_a_rate_that_is_none_is_refused():
    with pytest.raises(ValueError, match="bytes_per_s is 0"), paced(1, 0):
        pass


def test_a_machine_passes_over_nothing_its_own_shard_or_all_that_it_keeps():
    assert [hidden_from(Tier.LOCAL, rank, 4) for rank in range(4)] == [()] * 4
    assert [hidden_from(Tier.PEER, rank, 4) for rank in range(4)] == [(0,), (1,), (2,), (3,)]
    assert [hidden_from(Tier.STORAGE, rank, 4) for rank in range(4)] == [(0, 1), (1, 0), (2, 3), (3, 2)]
    with pytest.raises(ValueError, match="num_machines is 3; it must be even"):
        hidden_from(Tier.PEER, 7, 3)


def by_hand() -> list[TierTimes]:
    retrieved = {Tier.LOCAL: (0.1,), Tier.PEER: (0.2, 0.4), Tier.STORAGE: (8.0, 10.0)}
    return [
        TierTimes(
            num_machines=4,
            bandwidth_bytes_per_s=rate,
            total_bytes=80,
            checkpoint_s=(4.0, 1.0, 2.0),
            stored_s=(20.0,),
            retrieved_s=retrieved,
        )
        for rate in (12.5e6, 50e6)
    ]


def test_rows_hold_reductions_their_share_of_the_rates_and_the_worst_retrieval_from_a_peer():
    rows = {(row["quantity"], row["link_mbit_per_s"], row.get("tier")): row for row in tier_rows(by_hand(), 2.5e6)}
    assert rows["reduction", 100, None]["value"] == 10, "20 s over the median of 4, 1 and 2"
    assert (rows["reduction", 100, None]["low"], rows["reduction", 100, None]["high"]) == (5, 20)
    assert rows["reduction_of_rates", 100, None]["value"] == 20, "4 machines of 100 Mbit/s over 20 Mbit/s"
    assert rows["reduction_of_rates", 400, None]["value"] == 80
    assert rows["share_of_rates", 400, None]["value"] == pytest.approx(10 / 80)
    assert rows["peer_over_storage", 100, None]["value"] == pytest.approx(0.4 / 8)
    assert rows["retrieval_s", 100, "peer memory"]["value"] == pytest.approx(0.3)


def test_pictures_name_their_units():
    rows = tier_rows(by_hand(), 2.5e6)
    assert [ax.get_ylabel() for ax in pictures.draw_tiers(rows).axes] == [
        "checkpoint (s)",
        "times shorter than to storage",
    ]
    assert pictures.draw_retrieval(rows).axes[0].get_ylabel() == "until every rank has its state (s)"


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"storage_repeats": 0}, {"nums_machines": [3]}])
def test_what_cannot_be_measured_is_refused_before_any_rank_starts(wrong):
    chosen = {
        "nums_machines": [2],
        "bandwidths_bytes_per_s": [5e7],
        "storage_bytes_per_s": 1e6,
        "size": TINY,
        "repeats": 1,
        "storage_repeats": 1,
    } | wrong
    with pytest.raises(ValueError, match=next(iter(wrong)).removesuffix("s").replace("nums", "num")):
        measure_tiers(chosen.pop("nums_machines"), chosen.pop("bandwidths_bytes_per_s"), **chosen)


def test_real_ranks_store_no_faster_than_the_stated_rate_and_fetch_from_every_tier():
    (found,) = measure_tiers([2], [50e6], storage_bytes_per_s=1e5, size=TINY, repeats=2, storage_repeats=1)
    assert found.total_bytes > 12 * 3000, "weights and two moments of more than 3000 parameters, 4 bytes each"
    assert found.stored_s[0] >= found.total_bytes / 1e5
    assert found.retrieved_s[Tier.STORAGE][0] >= found.total_bytes / 1e5
    assert len(found.checkpoint_s) == len(found.retrieved_s[Tier.PEER]) == len(found.retrieved_s[Tier.LOCAL]) == 2
