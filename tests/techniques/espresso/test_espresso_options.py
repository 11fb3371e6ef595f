"""The decision tree against its rules and the count of the text."""

from itertools import pairwise

import pytest

from workbench.compression.costs import Processor
from workbench.techniques.espresso.method import Comm, Comp, Decomp, Option, Phase, compression_options, subtree_counts
from workbench.techniques.espresso.method.job import steps_of


def test_the_tree_has_as_many_paths_as_the_text_says():
    # By hand. T1: send, or compress (2 places), send, decompress (2): 1 + 4. T2: decompress (2) to T1, or send and
    # decompress (2): 10 + 2. T5: send to T1, or compress (2) and send to T2: 5 + 24. T4': decompress (2) to T5, or send
    # to T2: 58 + 12. T3: all-reduce to T1, 2 first steps to T5, compress (2) and all-gather to T2 or 2 first steps to
    # T4': 5 + 58 + 2 (12 + 140). T4: decompress (2) to T3, or all-gather to T2, or 2 first steps to T4': 734 + 152.
    # Hierarchical: 2 first steps to T3, compress (2) and 2 first steps to T4. Flat: 1 + 2 T1 + 2 (2 + 2 T2).
    counts = {"T1": 5, "T2": 12, "T3": 367, "T4": 886, "T5": 29, "T4'": 70, "flat": 63, "hierarchical": 4278}
    assert subtree_counts() == counts
    assert len(compression_options()) == len(set(compression_options())) == 4341  # section 4.7.1


def test_options_print_and_parse():
    for option in compression_options():
        assert Option.parse(str(option)) is option
    with pytest.raises(ValueError, match="option is 'flat.allgather'; it must be a path of the decision tree"):
        Option.parse("flat.allgather")


def test_an_option_says_where_it_compresses_and_in_how_many_phases_it_communicates():
    option = Option.parse("intra.reduce-scatter comp.gpu inter.allgather* decomp.cpu intra.allgather")
    assert option.processors == {Processor.GPU, Processor.CPU} and not option.is_flat
    option = Option.parse("comp.gpu flat.alltoall* flat.allgather* decomp.gpu")
    assert option.is_flat and option.is_compressed and not compression_options()[0].is_compressed


def test_in_every_option_compressing_and_decompressing_take_turns_and_every_gpu_ends_with_the_whole_sum():
    for option in compression_options():
        is_compressed = False
        for task in option.tasks:
            if isinstance(task, Comm):
                assert task.is_compressed == is_compressed
            else:
                assert isinstance(task, Decomp) == is_compressed
                is_compressed = isinstance(task, Comp)
        assert not is_compressed
        assert not any(isinstance(a, Comp) and isinstance(b, Decomp) for a, b in pairwise(option.tasks))
        phases = [task.phase for task in option.tasks if isinstance(task, Comm)]
        if option.is_flat:
            assert set(phases) == {Phase.FLAT} and len(phases) <= 2
        else:
            assert phases[0] is phases[-1] is Phase.INTRA and set(phases[1:-1]) == {Phase.INTER}
        for place in ((3, 4), (1, 4)):
            steps_of(option, *place)  # raises unless every GPU holds the whole sum in the end
