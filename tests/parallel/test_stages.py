"""Which layers a stage holds."""

import pytest

from workbench.parallel import Stage


def test_stages_hold_consecutive_equal_runs():
    stages = [Stage(index=index, num_stages=3) for index in range(3)]
    assert [list(stage.layers(6)) for stage in stages] == [[0, 1], [2, 3], [4, 5]]
    assert [stage.is_first for stage in stages] == [True, False, False]
    assert [stage.is_last for stage in stages] == [False, False, True]


def test_wrong_stages_are_refused_by_name():
    with pytest.raises(ValueError, match="num_layers: 7 is not divisible by 3"):
        Stage(index=0, num_stages=3).layers(7)
    with pytest.raises(ValueError, match=r"index: 3 is not in 0\.\.2"):
        Stage(index=3, num_stages=3)
    with pytest.raises(ValueError, match="num_stages: 0"):
        Stage(index=0, num_stages=0)
