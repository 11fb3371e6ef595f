"""Pipes, links, folders and markers of other shapes in a folder of checkpoints are passed over and named."""

import json
import os
from pathlib import Path

import pytest
import torch
import xxhash
from torch import nn

from workbench.techniques.gemini.runtime import PersistentTier, StorageCorrupt, TrainingState
from workbench.techniques.gemini.runtime.storage import MARKER


def stored() -> TrainingState:
    model = nn.Linear(2, 2)
    return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))


def sealed(body):
    text = json.dumps(body)
    return json.dumps({"checksum": xxhash.xxh3_128_hexdigest(text.encode()), "body": text})


MARKERS = {
    "a list": "[1]",
    "deeply nested": "[" * 100_000,
    "a sealed list": sealed([1]),
    "no parts": sealed({"iteration": 2}),
    "parts a number": sealed({"parts": 3}),
    "three parts": sealed({"parts": [["0" * 32] * 3]}),
    "a part elsewhere": sealed({"parts": [["0" * 32, "../../secret"]]}),
    "nested parts": sealed({"parts": [[["0" * 32], {}]]}),
}


@pytest.mark.parametrize("text", MARKERS.values(), ids=MARKERS)
def test_a_marker_of_another_shape_is_passed_over(tmp_path, text):
    tier, state = PersistentTier(f"file://{tmp_path}"), stored()
    tier.save(state.image(1), 1)
    (tmp_path / "iteration-000000002").mkdir()
    (tmp_path / f"iteration-000000002/{MARKER}").write_text(text)
    assert tier.iterations() == (1,)
    with pytest.raises(StorageCorrupt, match="iteration-000000002/complete.json: its checksum is wrong"):
        tier.read(state, 2)


def test_pipes_links_and_folders_in_the_place_of_files_are_passed_over_and_named(tmp_path):
    tier, state = PersistentTier(f"file://{tmp_path}/run"), stored()
    tier.save(state.image(1), 1)
    good, run_folder = tmp_path / "run/iteration-000000001", tmp_path / "run"
    for iteration, make in {2: os.mkfifo, 3: Path.mkdir, 4: lambda path: path.symlink_to(good / MARKER)}.items():
        folder = run_folder / f"iteration-{iteration:09d}"
        folder.mkdir()
        make(folder / MARKER)
    (run_folder / "iteration-000000005").symlink_to(good)
    (run_folder / "iteration-000000006").write_text("no folder")
    (run_folder / f"iteration-{'9' * 5000}"[:250]).mkdir()  # more digits than a number of iterations has
    with pytest.warns(UserWarning) as warned:
        assert tier.iterations() == (1,)
    said = "\n".join(sorted(str(warning.message) for warning in warned))
    for iteration in range(2, 7):
        place = f"iteration-{iteration:09d}" + (f"/{MARKER}" if iteration < 5 else "")
        assert f"{run_folder}/{place} is passed over: it is no " in said
    part = next(path for path in good.iterdir() if path.name != MARKER)
    part.unlink()
    os.mkfifo(part)
    with pytest.warns(UserWarning), pytest.raises(StorageCorrupt, match=f"{part.name} is no regular file"):
        tier.read(state, 1)
