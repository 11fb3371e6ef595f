"""Every option gives every rank the whole sum, on virtual ranks; a compressed exchange by hand."""

from functools import partial

import pytest
import torch

from workbench.compression import EFSign, ErrorFeedback, Identity
from workbench.compression.costs import Processor
from workbench.techniques.espresso.method import Option, compression_options
from workbench.techniques.espresso.method.exchange import (
    CODECS,
    Encoders,
    exchanged_by_definition,
    layouts_of,
    make_codec,
)

INTER_ONLY = "intra.reduce-scatter comp.gpu inter.allgather* decomp.gpu intra.allgather"
TWICE = "comp.gpu flat.alltoall* decomp.gpu comp.gpu flat.allgather* decomp.gpu"


def encoders(make, num_ranks):
    return [Encoders(make, "weight") for _ in range(num_ranks)]


@pytest.mark.parametrize("place", [(2, 2), (3, 2), (1, 4), (4, 1)])
def test_without_loss_every_option_ends_with_the_sum_on_every_rank(place):
    num_ranks = place[0] * place[1]
    gradients = [torch.arange(5.0).add(10**rank) for rank in range(num_ranks)]
    wanted = torch.stack(gradients).sum(dim=0)
    options = [o for o in compression_options() if Processor.CPU not in o.processors]  # a CPU sends the same
    for option in options[:: 2 if place == (2, 2) else 9]:
        for total in exchanged_by_definition(option, gradients, encoders(lambda _: Identity(), num_ranks), *place):
            assert torch.equal(total, wanted), option


def test_a_gradient_is_compressed_between_machines_only_by_hand():
    # Two machines of one GPU: signs times the mean magnitude, (1, -3) -> (2, -2), and (2, 2) -> (2, 2).
    gradients = [torch.tensor([1.0, -3.0]), torch.tensor([2.0, 2.0])]
    sums = exchanged_by_definition(Option.parse(INTER_ONLY), gradients, encoders(lambda _: EFSign(), 2), 2, 1)
    assert [x.tolist() for x in sums] == [[4.0, 0.0]] * 2


def test_a_shuffle_parts_what_was_encoded_and_each_piece_remembers_its_error():
    # Each piece has one element here, so that the signs lose nothing.
    make = encoders(lambda _: ErrorFeedback(EFSign()), 2)
    gradients = [torch.tensor([1.0, -3.0]), torch.tensor([2.0, 2.0])]
    for _ in range(2):
        sums = exchanged_by_definition(Option.parse(TWICE), gradients, make, 2, 1)
        assert [x.tolist() for x in sums] == [[3.0, -1.0]] * 2
    assert [layout.pieces for layout in layouts_of(Option.parse(TWICE), 2, 1)] == [1, 2, 1, 1, 1, 2, 1]


def test_dgc_keeps_more_in_the_first_epochs():
    make = encoders(lambda place: make_codec("dgc", place, warmup=(0.25,)), 2)
    gradients, kept = [torch.arange(400.0), torch.zeros(400)], []
    for epoch in range(2):
        for rank_encoders in make:
            rank_encoders.at_epoch(epoch)
        sums = exchanged_by_definition(Option.parse(INTER_ONLY), gradients, make, 2, 1)
        kept.append(int((sums[0] != 0).sum()))
    assert kept == [100, 4]  # a quarter, then a hundredth


@pytest.mark.parametrize("codec", CODECS)
def test_all_ranks_end_with_the_same_bits_also_where_sums_are_compressed_again(codec):
    options = [o for o in compression_options() if o.processors == {Processor.GPU}]
    for option in options[CODECS.index(codec) :: 2 * len(CODECS)]:
        make = encoders(partial(make_codec, codec), 4)
        for step in range(2):
            draw = torch.Generator().manual_seed(step)
            gradients = [torch.randn(400, generator=draw) for _ in range(4)]
            first, *others = exchanged_by_definition(option, gradients, make, 2, 2)
            assert all(torch.equal(first, other) for other in others), option
