"""The advisor with controls says what `workbench.advise` says, and draws where it changes."""

import workbench
from workbench import explore
from workbench.explore.advisor import RATES, advise, compute


def test_the_control_shows_the_gains_of_the_advice_and_a_line_where_the_network_decides():
    explorer = explore.advise()
    shown = explorer.result
    plain = workbench.advise("GPT-2", "8x8 V100, 100 Gbit/s", batch=8, limits=False)
    assert shown.table["Cupcake"][0] == plain["cupcake"].prediction.gain
    assert list(shown.gains) == [name for name in shown.table if name in ("Cupcake", "Espresso")]
    assert len(shown.gains["Cupcake"]) == len(RATES) and shown.gains["Cupcake"][0] > shown.gains["Cupcake"][-1]
    assert explorer.status.startswith("Advice: ") and "Do not apply: " in explorer.status


def test_one_machine_has_no_line_and_a_density_brings_zen():
    assert compute(model="GPT-2", machines="1x8 H100", batch=8, density=1.0).gains == {}
    explorer = advise().set(model="DeepFM", machines="4x1 V100, 25 Gbit/s", density=0.01)
    assert "Zen" in explorer.result.table
    assert "Zen" not in explorer.set(density=1.0).result.table
