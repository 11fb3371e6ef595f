"""Multi30k's pairs from each of their places, and the words that they are cut into."""

import os

import pytest
from cases import refusals

from workbench.datasets import SourceKind, multi30k, wikitext2
from workbench.datasets.manifest import FileStatus, entry_named, verify
from workbench.datasets.vocabulary import UNKNOWN, Vocabulary, split_words

REAL = os.environ.get("WORKBENCH_DATA", "")


def test_the_hubs_table_holds_both_languages(empty_machine, prepare):
    columns = {"en": ["A dog .", " Two men."], "de": ["Ein Hund.", "Zwei Männer. "]}
    prepare("bentrevett___multi30k/default", "multi30k-test.arrow", columns)
    dataset = multi30k.load("test_2016_flickr")
    assert dataset.texts == (["Ein Hund.", "Zwei Männer."], ["A dog .", "Two men."])
    assert dataset.source.kind is SourceKind.HUB and "2 of 1,000 pairs" in dataset.source.detail


def test_a_generated_translation_spells_every_word_backwards(empty_machine):
    dataset = multi30k.load("val", limit=5)
    assert dataset.source.detail.startswith("5 rows chosen from: 400 generated pairs") and not dataset.source.is_real
    for german, english in zip(*dataset.texts, strict=True):
        assert [word[::-1] for word in german.split()] == english.split()


def test_words_are_lower_cased_and_signs_stand_alone():
    assert split_words("Zwei Männer, (1,50 m)!") == ["zwei", "männer", ",", "(", "1", ",", "50", "m", ")", "!"]


def test_ids_follow_frequency_after_the_special_words_and_rare_words_are_unknown():
    sentences = [["a", "b", "b"], ["c", "b", "c", "d"]]
    known = Vocabulary(sentences, special=("<pad>", UNKNOWN), least=2)
    assert known.words == ("<pad>", UNKNOWN, "b", "c")
    assert known.encode(["c", "a", "b", "<pad>"]).tolist() == [3, 1, 2, 0]
    assert Vocabulary(sentences).words == (UNKNOWN, "b", "c", "a", "d")


REFUSED = refusals(
    (lambda: multi30k.load("test"), "split is 'test'; it must be one of train, val, test_2016_flickr"),
    (lambda: multi30k.load("val", limit=0), "limit is 0, must be at least 1 or None"),
    (lambda: Vocabulary([], special=("<s>",)), r"special is \('<s>',\), must hold '<unk>'"),
)
test_unknown_splits_and_limits_and_vocabularies_without_unknown_are_refused = pytest.mark.usefixtures("empty_machine")(
    REFUSED
)


@pytest.mark.skipif(not REAL, reason="WORKBENCH_DATA names no folder of real data")
def test_the_real_folder_holds_all_pairs_and_words():
    assert {check.status for check in verify("multi30k")} == {FileStatus.OK} and len(verify("multi30k")) == 6
    for language in multi30k.LANGUAGES:
        assert {file.split: file.rows for file in entry_named(f"multi30k/{language}").files} == multi30k.PUBLISHED_PAIRS
    train = multi30k.load("train")
    assert train.source.complete and train[0]["de"].startswith("Zwei junge weiße Männer sind im Freien")
    assert train[0]["en"] == "Two young, White males are outside near many bushes."
    lines = wikitext2.load("train").columns["text"]
    assert len(Vocabulary([*line.split(), "<eos>"] for line in lines)) == 33_278  # Merity et al., table 1
