"""Zen on four hosts: a sum's time over what its bytes take on the link, and over the fastest rival's.

At 1 Gbit/s four ranks on two cores compute for longer than their bytes take; at 100 Mbit/s the link decides. The item
zen/crossover/measured has more densities and all schemes; run both when nothing else runs.
"""

import os
from functools import partial

from workbench.study.measuring import Benchmark, BenchmarkRow
from workbench.study.timing import Turns
from workbench.techniques.zen import measured

DENSITIES = (0.01, 0.03, 0.1)
NUM_ELEMENTS = 2_000_000
TURNS = Turns(rounds=8, warmup=1)
MOST_OVER_BYTES, LEAST_GAIN = 1.3, 0.9  # never 10 % behind the best


def sums(gigabits_per_s: float = 1.0) -> list[BenchmarkRow]:
    setting = measured.Setting(gigabits_per_s=gigabits_per_s)
    timed = measured.time_densities(setting, DENSITIES, NUM_ELEMENTS, TURNS)
    predicted_s = measured.predicted_s(setting, DENSITIES, NUM_ELEMENTS)
    of_schemes, rows, num_cores = measured.scheme_rows(timed, "density", predicted_s), [], os.cpu_count() or 1
    for share in DENSITIES:
        of = [row for row in of_schemes if row.get("density") == share]
        (over,) = (r["value"] for r in of if r["quantity"] == "measured_over_predicted" and r["scheme"] == "Zen")
        asked = {"asked": f"at most {MOST_OVER_BYTES:g}", "holds": over <= MOST_OVER_BYTES}
        rows.append(BenchmarkRow(name=f"{share:.0%} not zero, over its bytes", figure=over, unit="x", **asked))
        (cpu_s,) = (row["value"] for row in of if row["quantity"] == "cpu_s" and row["scheme"] == "Zen")
        name = f"{share:.0%} not zero, processor time of all ranks on {num_cores} cores, over its bytes"
        rows.append(BenchmarkRow(name=name, figure=cpu_s / num_cores / predicted_s[str(share), "Zen"], unit="x"))
        rivals = [row for row in of if row["quantity"] == "gain" and not row["over"].startswith("Zen")]
        best = min(rivals, key=lambda row: row["value"])
        name = f"{share:.0%} not zero, as fast as the best rival, {best['over']}"
        asked = {"asked": f"at least {LEAST_GAIN:g}", "holds": best["value"] >= LEAST_GAIN}
        ends = {"low": best["low"], "high": best["high"]}
        rows.append(BenchmarkRow(name=name, figure=best["value"], unit="x", **asked, **ends))
    return rows


ASKS = "A sum's time at {}, beside its bytes and rivals."
BENCHMARKS = [
    Benchmark(name="zen-sums", asks=ASKS.format("1 Gbit/s"), run=sums),
    Benchmark(name="zen-sums-slow-link", asks=ASKS.format("100 Mbit/s"), run=partial(sums, 0.1)),
]
