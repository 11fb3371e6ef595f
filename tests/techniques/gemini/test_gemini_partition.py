"""Which part of a checkpoint travels in which idle span: algorithm 6.2 as it is meant, and the slips of its print."""

import random
from fractions import Fraction
from itertools import groupby, pairwise

import pytest

from workbench.techniques.gemini.method.partition import Chunk, partition_checkpoint, partition_checkpoint_by_definition

BOTH = pytest.mark.parametrize("partition", [partition_checkpoint, partition_checkpoint_by_definition])


def setting(**changes) -> dict:
    """m = 2, buffers of 4 bytes, 1 byte a second, α = 1 s, all of a span."""
    whole = {
        "num_replicas": 2,
        "reserved_bytes": 8,
        "num_buffers": 2,
        "bandwidth_bytes_per_s": 1.0,
        "startup_s": 1.0,
        "safety": 1.0,
    }
    return whole | changes


def summary(chunks: tuple[Chunk, ...]) -> list[tuple[int, int, int, int]]:
    return [(each.span, each.replica, each.offset_bytes, each.size_bytes) for each in chunks]


@BOTH
def test_a_span_takes_full_chunks_and_one_rest_and_the_last_span_what_is_left(partition):
    # f(4) = 5 s. Span 0 of 13 s: 5 + 5, and the rest of 3 s carries 2 bytes. Span 1 of 4 s: 3 bytes. 20 - 13 = 7 left.
    chunks = partition([13.0, 4.0, 0.0], 20, **setting())
    assert summary(chunks) == [(0, 0, 0, 4), (0, 0, 4, 4), (0, 0, 8, 2), (1, 0, 10, 3), (2, 0, 13, 4), (2, 0, 17, 3)]


@BOTH
def test_a_span_that_is_no_longer_than_the_startup_time_gets_nothing(partition):
    chunks = partition([0.5, 1.0, 0.0, 9.0, 0.0], 4, **setting())
    assert summary(chunks) == [(3, 0, 0, 4)]


@BOTH
def test_the_next_replica_begins_in_the_span_in_which_the_last_one_ended(partition):
    # Span 0 of 10 s: 3 bytes of replica 0 take 4 s; of the 6 s left one full chunk would take 5, replica 1 has 3: 4 s.
    # The 2 s left carry one byte of nothing more: m = 3 sends two replicas.
    chunks = partition([10.0, 0.0], 3, **setting(num_replicas=3))
    assert summary(chunks) == [(0, 0, 0, 3), (0, 1, 0, 3)]


@BOTH
def test_one_replica_is_the_local_one_and_sends_nothing(partition):
    assert partition([5.0], 100, **setting(num_replicas=1)) == ()


@BOTH
def test_the_safety_factor_shortens_every_span_but_the_last(partition):
    # 0.5 of 10 s: one full chunk of 5 s.
    chunks = partition([10.0, 0.0], 8, **setting(safety=0.5))
    assert summary(chunks) == [(0, 0, 0, 4), (1, 0, 4, 4)]


def random_case(draw: random.Random) -> tuple[list[float], int, dict]:
    num_buffers = draw.randint(1, 5)
    spans_s = [draw.choice([0.0, draw.random(), 10 * draw.random(), 0.25 * draw.randint(0, 40)]) for _ in range(8)]
    changes = {
        "num_replicas": draw.randint(1, 4),
        "num_buffers": num_buffers,
        "reserved_bytes": draw.randint(num_buffers, 60),
        "bandwidth_bytes_per_s": draw.choice([0.5, 3.0, 7.1, 40.0]),
        "startup_s": draw.choice([0.0, 0.1, 0.25, 2.0]),
        "safety": draw.choice([0.3, 0.9, 1.0]),
    }
    return spans_s[: draw.randint(1, 8)], draw.randint(1, 120), setting(**changes)


def test_the_fast_form_is_the_slow_one_to_the_byte():
    for seed in range(500):
        spans_s, checkpoint_bytes, options = random_case(random.Random(seed))
        fast = partition_checkpoint(spans_s, checkpoint_bytes, **options)
        assert fast == partition_checkpoint_by_definition(spans_s, checkpoint_bytes, **options), seed


@pytest.mark.parametrize("seed", range(20))
def test_every_remote_replica_is_sent_once_whole_in_chunks_that_fit_their_buffer_and_their_span(seed):
    for case in range(20):
        check_chunks(*random_case(random.Random(1000 * seed + case)))


def check_chunks(spans_s: list[float], checkpoint_bytes: int, options: dict) -> None:
    chunks = partition_checkpoint(spans_s, checkpoint_bytes, **options)
    replicas = {key: list(group) for key, group in groupby(chunks, key=lambda chunk: chunk.replica)}
    assert list(replicas) == list(range(options["num_replicas"] - 1))
    for sent in replicas.values():
        ends = [each.offset_bytes + each.size_bytes for each in sent]
        assert [each.offset_bytes for each in sent] == [0, *ends[:-1]] and ends[-1] == checkpoint_bytes
    assert all(1 <= each.size_bytes <= options["reserved_bytes"] // options["num_buffers"] for each in chunks)
    assert all(one.span <= other.span for one, other in pairwise(chunks))
    for span, inside in groupby(chunks, key=lambda chunk: chunk.span):
        f_s = [
            Fraction(options["startup_s"]) + each.size_bytes / Fraction(options["bandwidth_bytes_per_s"])
            for each in inside
        ]
        usable_s = Fraction(options["safety"]) * Fraction(spans_s[span])
        assert span == len(spans_s) - 1 or sum(f_s) <= usable_s


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_replicas": 0}, "num_replicas is 0"),
        ({"num_replicas": 1.5}, "num_replicas is 1.5"),
        ({"num_buffers": 0}, "num_buffers is 0"),
        ({"reserved_bytes": 1}, "reserved_bytes is 1; it must be a whole number of at least 2"),
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth_bytes_per_s is 0.0"),
        ({"bandwidth_bytes_per_s": float("inf")}, "bandwidth_bytes_per_s is inf"),
        ({"startup_s": -1.0}, "startup_s is -1.0"),
        ({"safety": 0.0}, "safety is 0.0"),
        ({"safety": 1.1}, r"safety is 1.1; it must be in \(0, 1\]"),
        ({"idle_spans_s": []}, "idle_spans_s is empty"),
        ({"idle_spans_s": [1.0, -2.0]}, r"idle_spans_s\[1\] is -2.0"),
        ({"idle_spans_s": [float("nan")]}, r"idle_spans_s\[0\] is nan"),
        ({"checkpoint_bytes": 0}, "checkpoint_bytes is 0"),
        ({"checkpoint_bytes": True}, "checkpoint_bytes is True"),
    ],
)
@BOTH
def test_bad_input_is_refused_by_name(partition, changes, message):
    whole = {"idle_spans_s": [1.0], "checkpoint_bytes": 4} | setting() | changes
    with pytest.raises(ValueError, match=message):
        partition(**whole)


# The algorithm as printed, for worked examples: buffers of 4 bytes, B = 1 byte/s, α = 1 s, μ = 1, so that f(4) = 5 s.


def printed(
    spans_s: list[float], checkpoint_bytes: float, num_replicas: int, *, most_steps: int = 100
) -> list[tuple[int, float]] | None:
    """Step through the lines as they are printed: (span, size); None if they still go on after so many steps."""
    remaining, replica, found, num_steps = checkpoint_bytes, 0, [], 0
    for span, span_s in enumerate([*spans_s[:-1], float("inf")]):
        left_s = span_s
        while left_s > 0:
            num_steps += 1
            if num_steps > most_steps:
                return None
            size = min(remaining, 4 if left_s >= 1 + 4 else max(0, left_s - 1))
            if size > 0:
                remaining -= size
                left_s -= 1 + remaining  # line 129: f(remain_size)
                found.append((span, size))
            if remaining == 0:
                if replica >= num_replicas - 1:  # line 133: cpkt_id < m - 1 goes on
                    return found
                replica, remaining = replica + 1, checkpoint_bytes
    return found


def test_as_printed_one_replica_too_many_is_sent():
    # m = 2 sends one replica of 8 bytes; the printed counter is 0 when that one ends, so another begins.
    assert printed([0.0], 8, 2) == [(0, 4)] * 4
    assert summary(partition_checkpoint([0.0], 8, **setting())) == [(0, 0, 0, 4), (0, 0, 4, 4)]


def test_as_printed_a_span_seems_full_when_much_is_left_to_send():
    # 11 s have room for two chunks of 5 s. After the first, 36 of 40 bytes are left: f(36) = 37 s are taken off.
    assert printed([11.0, 0.0], 40, 2)[:2] == [(0, 4), (1, 4)]
    chunks = partition_checkpoint([11.0, 0.0], 40, **setting())
    assert [each.size_bytes for each in chunks if each.span == 0] == [4, 4]


def test_as_printed_a_span_takes_too_much_when_little_is_left_to_send():
    # A span of 5.5 s and two replicas of 4 bytes: the first takes 5 s, but f(0) = 1 s is taken off, and 3.5 more bytes
    # are put into the 4.5 s that seem left: 5 + 4.5 s and more in a span of 5.5.
    assert printed([5.5, 0.0], 4, 3)[:2] == [(0, 4), (0, 3.5)]
    chunks = partition_checkpoint([5.5, 0.0], 4, **setting(num_replicas=3))
    assert summary(chunks) == [(0, 0, 0, 4), (1, 1, 0, 4)]


def test_as_printed_a_span_shorter_than_the_startup_time_is_never_left():
    # A span of 0.5 s: the size is max(0, 0.5 - 1) = 0, nothing changes, and the loop asks the same again.
    assert printed([0.5, 0.0], 8, 2, most_steps=1000) is None
    assert [each.span for each in partition_checkpoint([0.5, 0.0], 8, **setting())] == [1, 1]


def test_a_shard_of_gpt_2_100b_in_buffers_of_32_mib_is_cut_at_once():
    shard_bytes, chunk_bytes = 9_401_922_816, 32 * 2**20
    chunks = partition_checkpoint(
        [0.08] * 400,
        shard_bytes,
        num_replicas=2,
        reserved_bytes=4 * chunk_bytes,
        num_buffers=4,
        bandwidth_bytes_per_s=5e9,
        startup_s=5e-6,
    )
    # 0.072 s of each span: 10 chunks of 6.716 ms, and the rest of 4.84 ms carries less than one.
    in_first = [each.size_bytes for each in chunks if each.span == 0]
    assert in_first[:10] == [chunk_bytes] * 10 and 0 < in_first[10] < chunk_bytes and len(in_first) == 11
    assert sum(each.size_bytes for each in chunks) == shard_bytes
