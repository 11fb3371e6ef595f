"""Five ways to send a checkpoint, on the timeline of one iteration; pictures by hand."""

import pytest

from workbench.techniques.gemini.method.interleaving import (
    CheckpointTraffic,
    Phase,
    Scheme,
    interleave,
    planning_spans_s,
)
from workbench.timeline import Kind, Timeline, format_timeline, parse_timeline

# Two layers: forward and backward gather for 1 s and compute for 4 s; backward scatters for 1 s.
LAYERS = (
    Phase(label="F0", compute_s=4, gather_s=1),
    Phase(label="F1", compute_s=4, gather_s=1),
    Phase(label="B1", compute_s=4, gather_s=1, scatter_s=1, kind=Kind.BACKWARD),
    Phase(label="B0", compute_s=4, gather_s=1, scatter_s=1, kind=Kind.BACKWARD),
)


def traffic(**changes) -> CheckpointTraffic:
    """6 bytes, 1 byte a second on the network and to the host, two buffers of 1 byte."""
    whole = {
        "checkpoint_bytes": 6,
        "bandwidth_bytes_per_s": 1.0,
        "copy_bytes_per_s": 1.0,
        "reserved_bytes": 2,
        "num_buffers": 2,
        "safety": 1.0,
        "free_bytes": 2,
    }
    return CheckpointTraffic(**whole | changes)


def grid(timeline: Timeline, *, step_s: float = 1.0) -> str:
    return format_timeline(timeline, step_s=step_s)


def picture(text: str) -> str:
    return format_timeline(parse_timeline(text))


def test_without_checkpoints_gathers_run_one_layer_ahead_and_the_update_waits_for_the_last_scatter():
    found = interleave(LAYERS, traffic(), Scheme.BASELINE, update_s=1)
    assert grid(found.timeline) == picture("""
        network     | GF0 GF1 .  .  .  GB1 .  .  .  GB0 .  .  .  SB1 .  .  .  SB0 .
        copy engine | .   .   .  .  .  .   .  .  .  .   .  .  .  .   .  .  .  .   .
        compute     | .   F0  -  -  -  F1  -  -  -  B1  -  -  -  B0  -  -  -  .   U
    """)
    assert (found.iteration_s, found.idle_s, found.checkpoint_s, found.buffer_bytes) == (19, 13, 0, 0)


def test_the_spans_to_plan_with_lie_before_each_message_and_before_the_update():
    assert planning_spans_s(LAYERS) == (0, 0, 3, 3, 3, 3, 0)


def test_blocking_delays_all_of_training_by_the_checkpoint():
    found = interleave(LAYERS, traffic(), "Blocking", update_s=1)
    assert grid(found.timeline) == picture("""
        network     | c0 c1 c2 c3 c4 c5 GF0 GF1 .  .  .  GB1 .  .  .  GB0 .  .  .  SB1 .  .  .  SB0 .
        copy engine | .  c0 c1 c2 c3 c4 c5  .   .  .  .  .   .  .  .  .   .  .  .  .   .  .  .  .   .
        compute     | .  .  .  .  .  .  .   F0  -  -  -  F1  -  -  -  B1  -  -  -  B0  -  -  -  .   U
    """)
    assert (found.iteration_s, found.checkpoint_s, found.completed_s) == (25, 6, 7)


def test_naive_sends_one_chunk_a_span_and_needs_a_buffer_as_large_as_the_largest():
    found = interleave(LAYERS, traffic(), "Naive", update_s=1)
    assert grid(found.timeline) == picture("""
        network     | GF0 GF1 c0 - - GB1 . .  c1 -  - GB0 . SB1 . . . SB0 .
        copy engine | .   .   .  . . c0  - -  .  .  . c1  - -   . . . .   .
        compute     | .   F0  -  - - F1  - -  -  B1 - -   - B0  - - - .   U
    """)
    assert found.buffer_bytes == 3 and found.is_out_of_memory
    assert not interleave(LAYERS, traffic(free_bytes=3), "Naive").is_out_of_memory


def test_unpipelined_leaves_room_for_copies_and_what_does_not_fit_delays_the_update():
    # A span of 3 s has room for one byte and its copy (2 s); four of them for 4 of 6 bytes. The last chunk has 2.
    found = interleave(LAYERS, traffic(), "Unpipelined", update_s=1)
    assert grid(found.timeline) == picture("""
        network     | GF0 GF1 c0 .  . GB1 c1 .  . GB0 c2 .  . SB1 c3 .  . SB0 c4 - .  .
        copy engine | .   .   .  c0 . .   .  c1 . .   .  c2 . .   .  c3 . .   .  . c4 -
        compute     | .   F0  -  -  - F1  -  -  - B1  -  -  - B0  -  -  - .   .  . U  .
    """)
    assert (found.iteration_s, found.buffer_bytes, found.is_out_of_memory) == (21, 2, False)


def test_sub_buffers_let_copies_run_beside_messages_and_cost_nothing():
    found = interleave(LAYERS, traffic(), "Gemini", update_s=1)
    assert grid(found.timeline) == picture("""
        network     | GF0 GF1 c0 c1 c2 GB1 c3 c4 c5 GB0 .  .  .  SB1 .  .  .  SB0 .
        copy engine | .   .   .  c0 c1 c2  .  c3 c4 c5  .  .  .  .   .  .  .  .   .
        compute     | .   F0  -  -  -  F1  -  -  -  B1  -  -  -  B0  -  -  -  .   U
    """)
    assert (found.iteration_s, found.idle_s, found.checkpoint_s, found.completed_s) == (19, 7, 6, 10)
    assert (found.buffer_bytes, found.is_out_of_memory) == (2, False)


def test_a_checkpoint_larger_than_the_idle_time_makes_the_iteration_longer_by_the_rest():
    # Four spans of 3 s carry 12 of 15 bytes; three travel before the update.
    found = interleave(LAYERS, traffic(checkpoint_bytes=15), "Gemini", update_s=1)
    assert found.iteration_s == 19 + 3


def test_with_slower_copies_a_chunk_waits_until_a_buffer_is_free():
    # Copies take 2 s: two chunks fill both buffers, the third waits for the first copy to end at 5 s.
    found = interleave(LAYERS[:1], traffic(checkpoint_bytes=4, copy_bytes_per_s=0.5), "Blocking", update_s=1)
    assert grid(found.timeline) == picture("""
        network     | c0 c1 .  c2 .  c3 GF0 .  . . . .
        copy engine | .  c0 -  c1 -  c2 -   c3 - . . .
        compute     | .  .  .  .  .  .  .   F0 - - - U
    """)


def test_one_message_at_a_time_and_one_buffer_in_each_place():
    found = interleave(LAYERS, traffic(checkpoint_bytes=23, num_replicas=3), "Gemini", update_s=1)
    for resource in ("network", "copy engine", "compute"):
        actions = found.timeline.of(resource)
        assert all(one.end_s <= other.start_s for one, other in zip(actions, actions[1:], strict=False))
    received = [each.end_s for each in found.timeline.of("network") if each.kind is Kind.ENCODE]
    starts = [each.start_s for each in found.timeline.of("network") if each.kind is Kind.ENCODE]
    copied = [each.end_s for each in found.timeline.of("copy engine")]
    assert len(received) == 46 and sum(chunk.size_bytes for chunk in found.chunks) == 2 * 23
    assert all(start >= free for start, free in zip(starts[2:], copied, strict=False))


def test_an_iteration_without_messages_of_training_sends_the_checkpoint_before_its_update():
    found = interleave([Phase(label="F", compute_s=4)], traffic(), "Gemini", update_s=1)
    assert found.iteration_s == 6 + 1 and found.idle_s == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interleave([], traffic(), "Gemini"), "phases is empty"),
        (lambda: interleave(LAYERS, traffic(), "clever"), "scheme is 'clever'; it must be one of 'Baseline'"),
        (lambda: interleave(LAYERS, traffic(), "Gemini", update_s=-1), "update_s is -1"),
        (lambda: Phase(label="two words", compute_s=1), "label is 'two words'"),
        (lambda: Phase(label="F", compute_s=float("nan")), "compute_s of 'F' is nan"),
        (lambda: traffic(copy_bytes_per_s=0.0), "copy_bytes_per_s is 0.0"),
        (lambda: traffic(free_bytes=-1), "free_bytes is -1"),
        (lambda: traffic(num_replicas=0), "num_replicas is 0"),
        (lambda: traffic(safety=2.0), "safety is 2.0"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
