"""The generated text: the same everywhere, labelled by its rules, and of every task's shape."""

import pytest

from workbench.datasets import glue, stand_in

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("task", list(glue.TASKS))
def test_a_stand_in_has_the_columns_and_label_codes_of_its_task(task):
    spec = glue.TASKS[task]
    columns = stand_in.glue_columns(task, spec.text_columns, spec.validation_split)
    assert list(columns) == [*spec.text_columns, "label", "idx"]
    assert len(columns["label"]) == 400
    labels = set(columns["label"])
    if spec.is_regression:
        assert min(labels) == 0.0 and max(labels) == 5.0
    else:
        assert labels == set(range(spec.num_outputs))


def test_sentiment_follows_the_adjective():
    columns = stand_in.glue_columns("sst2", ("sentence",), "validation")
    for sentence, label in zip(columns["sentence"], columns["label"], strict=True):
        adjective = sentence.split()[1]
        assert adjective in (stand_in.GOOD if label else stand_in.BAD)


def test_similarity_scores_count_the_shared_content_words():
    columns = stand_in.glue_columns("stsb", ("one", "two"), "validation")
    for one, two, score in zip(columns["one"], columns["two"], columns["label"], strict=True):
        shared = sum(a == b for a, b in zip(one.split(), two.split(), strict=True)) - 2  # "the" stands twice in each
        assert score == 5 * shared / 4


def test_paraphrases_differ_by_synonyms_only():
    columns = stand_in.glue_columns("mrpc", ("one", "two"), "validation")
    synonyms = stand_in.SYNONYMS
    for one, two, label in zip(columns["one"], columns["two"], columns["label"], strict=True):
        reworded = " ".join(synonyms.get(word, word) for word in one.split())
        assert (two == reworded) == bool(label)


def test_generated_rows_are_the_same_on_every_machine():
    text = stand_in.running_text("test")
    assert text[0].startswith("= ") and text[10].startswith("= ")
    assert stand_in.stand_in_source("", {"text": text}, "", "").sha256 == EXPECTED_RUNNING_TEXT
    pairs = stand_in.glue_columns("rte", ("sentence1", "sentence2"), "validation")
    assert stand_in.stand_in_source("", pairs, "", "").sha256 == EXPECTED_PAIRS


EXPECTED_RUNNING_TEXT = "f7af637160a697a8e626b1e5a5cdaa88dd35752f5274d35fb9742f2911bfd947"
EXPECTED_PAIRS = "b9efedef9c878411c4dc5695cab13f59e6e2c94af710deb34703d763eef96cc6"
