"""The control over one iteration: what it computes, says and draws."""

import pytest
from matplotlib import pyplot

from workbench.explore.gemini.interleaving_explorer import compare, describe, draw, explore_interleaving
from workbench.plots import styled
from workbench.techniques.gemini.method.interleaving import Scheme

CHOSEN = {"link": 100, "copy_rate": 400, "reserved_mib": 128, "num_buffers": 4, "safety": 0.9, "num_replicas": 2}


def test_a_checkpoint_that_goes_first_costs_its_time_and_one_in_idle_spans_less():
    blocking, gemini = (compare(scheme=each, **CHOSEN) for each in (Scheme.BLOCKING, Scheme.GEMINI))
    assert blocking.overhead == pytest.approx(blocking.chosen.checkpoint_s / blocking.plain.iteration_s)
    assert 0 <= gemini.overhead < blocking.overhead


def test_more_replicas_take_more_of_the_network():
    two, three = (compare(scheme=Scheme.GEMINI, **CHOSEN | {"num_replicas": number}) for number in (2, 3))
    assert three.chosen.checkpoint_s == pytest.approx(2 * two.chosen.checkpoint_s, rel=1e-3)


def test_one_replica_stays_at_home_and_the_text_says_so():
    found = compare(scheme=Scheme.GEMINI, **CHOSEN | {"num_replicas": 1})
    assert found.overhead == 0 and describe(found).startswith("No checkpoint")


def test_more_buffers_than_are_free_are_out_of_memory_and_the_text_says_so():
    # Two shards of 136 MiB in chunks of 128: four chunks, four buffers of 128 MiB, and 256 MiB are free.
    large = compare(scheme=Scheme.BLOCKING, **CHOSEN | {"reserved_mib": 512, "num_buffers": 4, "num_replicas": 3})
    assert large.chosen.buffer_bytes == 512 * 2**20 > large.free_bytes
    assert large.chosen.is_out_of_memory and "out of memory" in describe(large)
    assert "out of memory" not in describe(compare(scheme=Scheme.BLOCKING, **CHOSEN))


def test_the_figure_has_the_baseline_above_the_choice_on_one_scale():
    with styled():
        drawn = draw(compare(scheme=Scheme.BLOCKING, **CHOSEN))
    above, below = drawn.axes
    assert above.get_title(loc="left").startswith("Baseline") and below.get_title(loc="left").startswith("Blocking")
    assert above.get_xlim() == below.get_xlim()
    assert [text.get_text() for text in below.get_yticklabels()] == ["network", "copy engine", "compute"]
    pyplot.close(drawn)


def test_a_control_that_is_moved_is_computed_and_told():
    explorer = explore_interleaving()
    assert list(explorer.values) == ["scheme", *CHOSEN]
    explorer.set(scheme=Scheme.BLOCKING)
    assert explorer._repr_mimebundle_()["text/plain"].startswith("Blocking: the iteration is 9.")
