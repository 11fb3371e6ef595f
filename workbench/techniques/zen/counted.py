"""The rows of what is counted: densities of the paper's LSTM, lost gradients, formats, balance, and all schemes."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from workbench.datasets import embedding_usage
from workbench.models import h100
from workbench.rows import value_row

from .cost import lstm_sets
from .method.formats import BLOCK_ELEMENTS, HashBitmap, index_bytes, nonzero_blocks
from .method.hashing import partition, partition_of, share_without_slot, strawman_hash
from .method.schemes import RIVALS, SCHEMES, stages, traffic
from .method.sparsity import (
    densification_ratio,
    imbalance_ratio,
    push_imbalance,
    range_counts,
    skewness_ratio,
    union_of,
)

__all__ = ["balance_rows", "format_rows", "lm1b_rows", "loss_rows", "space_rows", "table_rows"]

VALUE_BYTES = 4
NUM_FIELDS_OF_NUMBERS = 13  # of Criteo


def lm1b_rows() -> list[dict[str, Any]]:
    """Return the densities of the gradients of the paper's LSTM, of each table and of both, and its parameters.

    `skewness` is of 128 ranges, `share` of the first of eight; both are means over batches.
    """
    sets, num_rows = lstm_sets(len(embedding_usage.lm1b_batches()))
    half = num_rows // 2
    inputs = np.array([np.sum(indices < half) for indices in sets])
    densities = {"input": inputs / half, "softmax": np.array([len(indices) for indices in sets] - inputs) / half}
    densities["both"] = (densities["input"] + densities["softmax"]) / 2
    rows = [value_row("density", float(by_batch.mean()), table=name) for name, by_batch in densities.items()]
    for name, first in (("input", 0), ("softmax", half)):
        touched = [indices[(first <= indices) & (indices < first + half)] - first for indices in sets]
        skewness = np.mean([skewness_ratio(indices, half, 128) for indices in touched])
        share = np.mean([range_counts(indices, half, 8)[0] / len(indices) for indices in touched])
        rows.append(value_row("skewness", float(skewness), table=name, partitions=128))
        rows.append(value_row("share", float(share), table=name, range=0))
    return [*rows, value_row("embedding_parameters", 512.0 * half, model="LSTM")]  # two tables of 256 a word


def table_rows() -> list[dict[str, Any]]:
    """Return BERT's parameters, inside and outside of its table of words, and the rows of DeepFM's tables."""
    bert = h100.load("bert_base")
    sizes = dict(zip(bert.tensors, bert.num_elements, strict=True))
    words = sum(size for name, size in sizes.items() if "word_embeddings" in name)
    of_bert = {"embedding_parameters": words, "other_parameters": sum(sizes.values()) - words}
    rows = [value_row(name, float(number), model="BERT") for name, number in of_bert.items()]
    of_deepfm = embedding_usage.criteo_field_sizes()[NUM_FIELDS_OF_NUMBERS:].sum()
    return [*rows, value_row("rows", float(of_deepfm), model="DeepFM")]


def loss_rows(
    *, domain_size: int, densities: Sequence[float], memories: Sequence[float], num_partitions: int, seed: int
) -> list[dict[str, Any]]:
    """Return the share of gradients that the strawman loses, counted and by the formula; memories in slots over |G|.

    N balls in m bins leave m (1 - e^(-N/m)) bins with one or more. `without_slot` is the share of the indices, those of
    the last density, that algorithm 3.2 writes serially: by the number of hash functions and of slots for an index.
    """
    draw, rows = np.random.default_rng(seed), []
    for density, memory in product(densities, memories):
        indices = torch.from_numpy(draw.choice(domain_size, round(density * domain_size), replace=False))
        slots, row = round(memory * domain_size), partial(value_row, density=density, memory=memory)
        kept = sum(map(len, strawman_hash(indices, num_partitions, slots, seed)))
        load = len(indices) / slots
        rows.append(row("lost", 1 - kept / len(indices)))
        rows.append(row("lost_by_formula", 1 + np.expm1(-load) / load))
    for hashes, slots in product((3, 4), (2, 4)):
        left = share_without_slot(indices, num_hashes=hashes, parallel_slots=slots * len(indices), seed=seed)
        rows.append(value_row("without_slot", left, hashes=hashes, slots=slots))
    return rows


def format_rows(
    *, domain_size: int, densities: Sequence[float], num_partitions: int, seed: int
) -> list[dict[str, Any]]:
    """Return the bytes of a sum in each format over those of the dense tensor.

    `worth_it_below` is the density at which a format is as long as the dense tensor, between two of those given; the
    last one if none is. Blocks are counted for values anywhere ("scattered") and for rows of an embedding of 64 values.
    """
    draw, rows = np.random.default_rng(seed), []
    whole, bitmap = VALUE_BYTES * domain_size, HashBitmap(domain_size, num_partitions, seed)
    for density in densities:
        num = round(density * domain_size)
        chosen = torch.from_numpy(draw.choice(domain_size, num, replace=False))
        parts = enumerate(partition(chosen, num_partitions, seed))
        indices: dict[str, float] = {"hash bitmap": sum(bitmap.encode(part, number).nbytes for number, part in parts)}
        indices |= {written: index_bytes(written, num, domain_size, num_partitions) for written in ("bitmap", "COO")}
        sizes = {written: VALUE_BYTES * num + more for written, more in indices.items()}
        for name, width in (("scattered", 1), ("rows of 64", 64)):
            entries = torch.from_numpy(draw.choice(domain_size // width, num // width, replace=False))
            blocks = len(nonzero_blocks(entries, BLOCK_ELEMENTS // width))
            sizes[f"tensor blocks, {name}"] = blocks * (VALUE_BYTES * BLOCK_ELEMENTS + VALUE_BYTES)
        rows += [value_row("size", size / whole, density=density, format=written) for written, size in sizes.items()]
    for written in ("hash bitmap", "bitmap", "COO"):
        over_dense = [row["value"] for row in rows if row["quantity"] == "size" and row["format"] == written]
        rows.append(value_row("worth_it_below", float(np.interp(1.0, over_dense, densities)), format=written))
    return rows


def balance_rows(*, num_partitions: Sequence[int], num_indices: Sequence[int], seeds: int) -> list[dict[str, Any]]:
    """Return imbalance by hashing, of random sets and of the LSTM's, beside what theorem 3.2 bounds.

    `excess_over_bound` is imbalance - 1 over sqrt(n log n / N), the most of all seeds: the theorem's constant.
    """
    rows = []
    for num, size in product(num_partitions, num_indices):
        if size < num:
            continue
        imbalances = []
        for seed in range(seeds):
            indices = torch.from_numpy(np.random.default_rng(seed).integers(2**31, size=size))
            counts = torch.bincount(partition_of(indices, num, seed), minlength=num)
            imbalances.append(imbalance_ratio(counts.numpy()))
        row = partial(value_row, indices=size, partitions=num, kind="random")
        rows.append(row("imbalance", float(np.mean(imbalances))))
        rows.append(row("excess_over_bound", (max(imbalances) - 1) / np.sqrt(num * np.log(num) / size)))
    for num in num_partitions:
        sets, num_rows = lstm_sets(num)
        homes = partition_of(torch.arange(num_rows), num, 0).numpy()
        pull = imbalance_ratio(np.bincount(homes[union_of(sets)], minlength=num))
        pairs = {"push": push_imbalance(sets, homes, num), "pull": pull}
        rows += [value_row("imbalance", ratio, partitions=num, kind=f"LSTM, {what}") for what, ratio in pairs.items()]
    return rows


OVERLAPS: Mapping[str, str] = {
    "none": "each rank has rows of its own",
    "partial": "batches of the paper's LSTM",
    "whole": "all ranks have the same rows",
}


def space_rows(*, num_ranks: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """Return the gradients on the busiest link for every scheme, over the mean of a rank's, by overlap of the sets.

    `behind_best` compares a scheme with the best of all; `stages` follow each other, of a published one on 16 ranks.
    """
    rows = []
    for overlap, num in product(OVERLAPS, num_ranks):
        sets, num_rows = _sets(overlap, num)
        homes = {"Balanced": _dealt(sets, num_rows, seed), "Imbalanced": np.arange(num_rows) * num // num_rows}
        mean = float(np.mean([len(indices) for indices in sets]))
        keys: dict[str, Any] = {"overlap": overlap, "ranks": num}
        by_scheme = {scheme: traffic(scheme, sets, homes.get(scheme.balance, homes["Balanced"])) for scheme in SCHEMES}
        for scheme, sent in by_scheme.items():
            rows.append(value_row("sent", sent / mean, scheme=str(scheme), **keys))
            rows.append(value_row("behind_best", sent / min(by_scheme.values()) - 1, scheme=str(scheme), **keys))
        rows.append(value_row("densification", densification_ratio(sets), **keys))
    alone = [np.array([rank]) for rank in range(16)]
    rows += [value_row("stages", len(stages(rival, alone, np.arange(16))), name=name) for name, rival in RIVALS.items()]
    return [*rows, value_row("schemes", len(SCHEMES))]


def _dealt(sets: Sequence[np.ndarray], num_rows: int, seed: int) -> np.ndarray:
    """Return a home of each row that deals the sum's rows out evenly: the theorem assumes it, and nobody knows it."""
    home, there = np.zeros(num_rows, np.int64), union_of(sets)
    home[np.random.default_rng(seed).permutation(there)] = np.arange(len(there)) % len(sets)
    return home


def _sets(overlap: str, num_ranks: int) -> tuple[Sequence[np.ndarray], int]:
    sets, num_rows = lstm_sets(num_ranks)
    size = min(len(indices) for indices in sets)
    if overlap == "none":
        order = np.random.default_rng(0).permutation(num_rows)[: size * num_ranks]
        return np.split(order, num_ranks), num_rows
    return (sets, num_rows) if overlap == "partial" else ([sets[0]] * num_ranks, num_rows)
