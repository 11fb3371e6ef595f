"""Idle spans of an iteration, chunks that fill them (algorithm 6.2), and five schemes on its timeline; by hand."""

import random
from fractions import Fraction
from functools import partial
from itertools import groupby, pairwise

import pytest
from cases import refusals

from workbench.techniques.gemini import method
from workbench.techniques.gemini.method import Phase, idle_spans_s, interleave, partition_checkpoint, planning_spans_s
from workbench.timeline import Kind, format_timeline, parse_timeline


def setting(**changes) -> dict:
    """m = 2, buffers of 4 bytes, 1 byte a second, α = 1 s, all of a span."""
    buffers = {"num_replicas": 2, "reserved_bytes": 8, "num_buffers": 2}
    return {**buffers, "bandwidth_bytes_per_s": 1.0, "startup_s": 1.0, "safety": 1.0, **changes}


def summary(chunks: tuple[method.Chunk, ...]) -> list[tuple[int, int, int, int]]:
    return [(chunk.span, chunk.replica, chunk.offset_bytes, chunk.size_bytes) for chunk in chunks]


PARTITIONS = [
    # f(4) = 5 s. Span 0 of 13 s: 5 + 5, and the rest of 3 s carries 2 bytes. Span 1 of 4 s: 3 bytes. 20 - 13 = 7 left.
    ([13.0, 4.0, 0.0], 20, {}, [(0, 0, 0, 4), (0, 0, 4, 4), (0, 0, 8, 2), (1, 0, 10, 3), (2, 0, 13, 4), (2, 0, 17, 3)]),
    # A span that is no longer than the start-up time carries nothing.
    ([0.5, 1.0, 0.0, 9.0, 0.0], 4, {}, [(3, 0, 0, 4)]),
    # m = 3 sends two replicas. Span 0 of 10 s: 3 bytes of replica 0 take 4 s, and 3 of replica 1 another 4 s.
    ([10.0, 0.0], 3, {"num_replicas": 3}, [(0, 0, 0, 3), (0, 1, 0, 3)]),
    # One replica is the local one: nothing is sent.
    ([5.0], 100, {"num_replicas": 1}, []),
    # The safety factor shortens every span but the last: in 0.5 of 10 s one full chunk of 5 s.
    ([10.0, 0.0], 8, {"safety": 0.5}, [(0, 0, 0, 4), (1, 0, 4, 4)]),
]


@pytest.mark.parametrize(("spans_s", "checkpoint_bytes", "changes", "expected"), PARTITIONS)
def test_spans_take_full_chunks_and_one_rest_as_by_hand(spans_s, checkpoint_bytes, changes, expected):
    assert summary(partition_checkpoint(spans_s, checkpoint_bytes, **setting(**changes))) == expected


def random_case(draw: random.Random) -> tuple[list[float], int, dict]:
    num_buffers = draw.randint(1, 5)
    spans_s = [draw.choice([0.0, draw.random(), 10 * draw.random(), 0.25 * draw.randint(0, 40)]) for _ in range(8)]
    options = setting(
        num_replicas=draw.randint(1, 4),
        num_buffers=num_buffers,
        reserved_bytes=draw.randint(num_buffers, 60),
        bandwidth_bytes_per_s=draw.choice([0.5, 3.0, 7.1, 40.0]),
        startup_s=draw.choice([0.0, 0.1, 0.25, 2.0]),
        safety=draw.choice([0.3, 0.9, 1.0]),
    )
    return spans_s[: draw.randint(1, 8)], draw.randint(1, 120), options


def test_chunks_of_random_spans_keep_the_rules():
    for seed in range(150):
        spans_s, checkpoint_bytes, options = random_case(random.Random(seed))
        chunks = partition_checkpoint(spans_s, checkpoint_bytes, **options)
        check_chunks(chunks, spans_s, checkpoint_bytes, options)


def check_chunks(chunks: tuple[method.Chunk, ...], spans_s: list[float], checkpoint_bytes: int, options: dict) -> None:
    """Every remote replica is sent once, whole, in chunks that fit their buffer and their span."""
    replicas = {key: list(group) for key, group in groupby(chunks, key=lambda chunk: chunk.replica)}
    assert list(replicas) == list(range(options["num_replicas"] - 1))
    for sent in replicas.values():
        ends = [chunk.offset_bytes + chunk.size_bytes for chunk in sent]
        assert [chunk.offset_bytes for chunk in sent] == [0, *ends[:-1]] and ends[-1] == checkpoint_bytes
    assert all(1 <= chunk.size_bytes <= options["reserved_bytes"] // options["num_buffers"] for chunk in chunks)
    assert all(chunk.span <= following.span for chunk, following in pairwise(chunks))
    startup_s, rate = Fraction(options["startup_s"]), Fraction(options["bandwidth_bytes_per_s"])
    for span, inside in groupby(chunks, key=lambda chunk: chunk.span):
        took_s = sum(startup_s + chunk.size_bytes / rate for chunk in inside)
        assert span == len(spans_s) - 1 or took_s <= Fraction(options["safety"]) * Fraction(spans_s[span])


test_a_partition_refuses_bad_input_by_name = refusals(
    ({"num_replicas": 0}, "num_replicas is 0"),
    ({"reserved_bytes": 1}, "reserved_bytes is 1; it must be a whole number of at least 2"),
    ({"bandwidth_bytes_per_s": float("inf")}, "bandwidth_bytes_per_s is inf"),
    ({"startup_s": -1.0}, "startup_s is -1.0"),
    ({"safety": 0.0}, "safety is 0.0"),
    ({"safety": 1.1}, r"safety is 1.1; it must be in \(0, 1\]"),
    ({"idle_spans_s": []}, "idle_spans_s is empty"),
    ({"idle_spans_s": [1.0, float("nan")]}, r"idle_spans_s\[1\] is nan"),
    ({"checkpoint_bytes": True}, "checkpoint_bytes is True"),
    of=partial(partition_checkpoint, idle_spans_s=[1.0], checkpoint_bytes=4, **setting()),
)


def iteration(*messages: tuple[float, float], start_s: float = 0.0, end_s: float = 10.0):
    return idle_spans_s(messages, start_s, end_s)


def test_idle_is_what_lies_before_and_after_operations_and_averaged_by_index_on_each_iterations_own_clock():
    assert iteration((1, 3), (6, 7)) == (1, 3, 3)
    assert iteration(start_s=2, end_s=5) == (3,)
    # Operations that overlap count once and leave spans of nothing. 1-5 and 2-3 and 4-8: busy from 1 to 8.
    assert iteration((4, 8), (1, 5), (2, 3)) == (1, 0, 0, 2)
    # Of 9 to 11, 12 to 14, 13 to 15 and 19 to 25 the iteration from 10 to 20 has 1 + 3 + 1, and not what lies outside.
    assert iteration((9, 11), (12, 14), (13, 15), (19, 25), start_s=10, end_s=20) == (0, 1, 0, 4, 0)
    assert iteration((1, 9), (21, 30), start_s=10, end_s=20) == (10,)
    first, second = iteration((1, 3), (6, 7)), iteration((103, 104), (105, 107), start_s=100, end_s=110)
    assert method.mean_spans_s([first, second]) == (2, 2, 3)  # of 1, 3, 3 and 3, 1, 3
    # Spans 0, 0, 6 where they overlap, and 0, 2, 4 where they do not.
    assert method.mean_spans_s([iteration((0, 3), (2, 4)), iteration((0, 2), (4, 6))]) == (0, 1, 5)
    assert method.least_spans_s([(1, 5), (2, 3)]) == (1, 3)


# Two layers: forward and backward gather for 1 s and compute for 4 s; backward scatters for 1 s.
LAYERS = (
    Phase(label="F0", compute_s=4, gather_s=1),
    Phase(label="F1", compute_s=4, gather_s=1),
    Phase(label="B1", compute_s=4, gather_s=1, scatter_s=1, kind=Kind.BACKWARD),
    Phase(label="B0", compute_s=4, gather_s=1, scatter_s=1, kind=Kind.BACKWARD),
)


def traffic(**changes) -> method.CheckpointTraffic:
    """6 bytes, 1 byte a second on the network and to the host, two buffers of 1 byte."""
    rates = {"bandwidth_bytes_per_s": 1.0, "copy_bytes_per_s": 1.0}
    buffers = {"reserved_bytes": 2, "num_buffers": 2, "free_bytes": 2}
    return method.CheckpointTraffic(**{"checkpoint_bytes": 6, "safety": 1.0, **rates, **buffers, **changes})


def picture(text: str) -> str:
    return format_timeline(parse_timeline(text))


def test_without_checkpoints_gathers_run_one_layer_ahead_and_the_update_waits_for_the_last_scatter():
    iteration = interleave(LAYERS, traffic(), method.Scheme.BASELINE, update_s=1)
    assert format_timeline(iteration.timeline, step_s=1.0) == picture("""
        network     | GF0 GF1 .  .  .  GB1 .  .  .  GB0 .  .  .  SB1 .  .  .  SB0 .
        copy engine | .   .   .  .  .  .   .  .  .  .   .  .  .  .   .  .  .  .   .
        compute     | .   F0  -  -  -  F1  -  -  -  B1  -  -  -  B0  -  -  -  .   U
    """)
    assert (iteration.iteration_s, iteration.idle_s, iteration.checkpoint_s, iteration.buffer_bytes) == (19, 13, 0, 0)
    # The spans to plan with lie before each message and before the update.
    assert planning_spans_s(LAYERS) == (0, 0, 3, 3, 3, 3, 0)


def test_blocking_delays_all_of_training_by_the_checkpoint():
    iteration = interleave(LAYERS, traffic(), "Blocking", update_s=1)
    assert format_timeline(iteration.timeline, step_s=1.0) == picture("""
        network     | c0 c1 c2 c3 c4 c5 GF0 GF1 .  .  .  GB1 .  .  .  GB0 .  .  .  SB1 .  .  .  SB0 .
        copy engine | .  c0 c1 c2 c3 c4 c5  .   .  .  .  .   .  .  .  .   .  .  .  .   .  .  .  .   .
        compute     | .  .  .  .  .  .  .   F0  -  -  -  F1  -  -  -  B1  -  -  -  B0  -  -  -  .   U
    """)
    assert (iteration.iteration_s, iteration.checkpoint_s) == (25, 6)


def test_naive_sends_one_chunk_a_span_and_needs_a_buffer_as_large_as_the_largest():
    iteration = interleave(LAYERS, traffic(), "Naive", update_s=1)
    assert format_timeline(iteration.timeline, step_s=1.0) == picture("""
        network     | GF0 GF1 c0 - - GB1 . .  c1 -  - GB0 . SB1 . . . SB0 .
        copy engine | .   .   .  . . c0  - -  .  .  . c1  - -   . . . .   .
        compute     | .   F0  -  - - F1  - -  -  B1 - -   - B0  - - - .   U
    """)
    assert iteration.buffer_bytes == 3 and iteration.is_out_of_memory
    assert not interleave(LAYERS, traffic(free_bytes=3), "Naive").is_out_of_memory


def test_unpipelined_leaves_room_for_copies_and_what_does_not_fit_delays_the_update():
    # A span of 3 s has room for one byte and its copy (2 s); four of them for 4 of 6 bytes. The last chunk has 2.
    iteration = interleave(LAYERS, traffic(), "Unpipelined", update_s=1)
    assert format_timeline(iteration.timeline, step_s=1.0) == picture("""
        network     | GF0 GF1 c0 .  . GB1 c1 .  . GB0 c2 .  . SB1 c3 .  . SB0 c4 - .  .
        copy engine | .   .   .  c0 . .   .  c1 . .   .  c2 . .   .  c3 . .   .  . c4 -
        compute     | .   F0  -  -  - F1  -  -  - B1  -  -  - B0  -  -  - .   .  . U  .
    """)
    assert (iteration.iteration_s, iteration.buffer_bytes, iteration.is_out_of_memory) == (21, 2, False)


def test_sub_buffers_let_copies_run_beside_messages_and_cost_nothing():
    iteration = interleave(LAYERS, traffic(), "Gemini", update_s=1)
    assert format_timeline(iteration.timeline, step_s=1.0) == picture("""
        network     | GF0 GF1 c0 c1 c2 GB1 c3 c4 c5 GB0 .  .  .  SB1 .  .  .  SB0 .
        copy engine | .   .   .  c0 c1 c2  .  c3 c4 c5  .  .  .  .   .  .  .  .   .
        compute     | .   F0  -  -  -  F1  -  -  -  B1  -  -  -  B0  -  -  -  .   U
    """)
    assert (iteration.iteration_s, iteration.idle_s, iteration.checkpoint_s) == (19, 7, 6)
    assert (iteration.buffer_bytes, iteration.is_out_of_memory) == (2, False)
    # Four spans of 3 s carry 12 of 15 bytes; three travel before the update.
    assert interleave(LAYERS, traffic(checkpoint_bytes=15), "Gemini", update_s=1).iteration_s == 19 + 3
    # Without messages of training the checkpoint is sent before the update.
    alone = interleave([Phase(label="F", compute_s=4)], traffic(), "Gemini", update_s=1)
    assert (alone.iteration_s, alone.idle_s) == (6 + 1, 1)


def test_with_slower_copies_a_chunk_waits_until_a_buffer_is_free():
    # Copies take 2 s: two chunks fill both buffers, the third waits for the first copy to end at 5 s.
    iteration = interleave(LAYERS[:1], traffic(checkpoint_bytes=4, copy_bytes_per_s=0.5), "Blocking", update_s=1)
    assert format_timeline(iteration.timeline, step_s=1.0) == picture("""
        network     | c0 c1 .  c2 .  c3 GF0 .  . . . .
        copy engine | .  c0 -  c1 -  c2 -   c3 - . . .
        compute     | .  .  .  .  .  .  .   F0 - - - U
    """)


def test_one_message_at_a_time_and_one_buffer_in_each_place():
    iteration = interleave(LAYERS, traffic(checkpoint_bytes=23, num_replicas=3), "Gemini", update_s=1)
    for resource in ("network", "copy engine", "compute"):
        assert all(action.end_s <= following.start_s for action, following in pairwise(iteration.timeline.of(resource)))
    starts_s = [action.start_s for action in iteration.timeline.of("network") if action.kind is Kind.ENCODE]
    copied_s = [action.end_s for action in iteration.timeline.of("copy engine")]
    assert len(starts_s) == 46 and sum(chunk.size_bytes for chunk in iteration.chunks) == 2 * 23
    assert all(start_s >= free_s for start_s, free_s in zip(starts_s[2:], copied_s, strict=False))


test_bad_input_is_refused_by_name = refusals(
    (lambda: iteration(start_s=3, end_s=2), "start_s, end_s are 3, 2; they must be finite"),
    (lambda: iteration((2, 1)), "messages has 2 to 1"),
    (lambda: method.mean_spans_s([(1.0, 2.0), (1.0,)]), r"iterations_s have \[1, 2\] spans"),
    (lambda: method.least_spans_s([(1, 5), (2, 2, 3)]), r"ranks_s have \[2, 3\] spans"),
    (lambda: interleave([], traffic(), "Gemini"), "phases is empty"),
    (lambda: interleave(LAYERS, traffic(), "clever"), "scheme is 'clever'; it must be one of 'Baseline'"),
    (lambda: interleave(LAYERS, traffic(), "Gemini", update_s=-1), "update_s is -1"),
    (lambda: Phase(label="two words", compute_s=1), "label is 'two words'"),
    (lambda: traffic(copy_bytes_per_s=0.0), "copy_bytes_per_s is 0.0"),
    (lambda: traffic(free_bytes=-1), "free_bytes is -1"),
)
