"""Parameters by closed form against Hugging Face's models."""

from dataclasses import replace

import pytest
import torch
import transformers

from workbench.models.sizes import Family, ModelSizes, num_parameters

SMALL = ModelSizes(
    family=Family.GPT_2, hidden_size=8, intermediate_size=20, num_layers=3, num_heads=2, vocab_size=50, max_positions=12
)


def built(family: Family) -> torch.nn.Module:
    common = {"vocab_size": 50, "pad_token_id": 0}
    if family is Family.GPT_2:
        shape = {"n_embd": 8, "n_layer": 3, "n_head": 2, "n_inner": 20, "n_positions": 12}
        config = transformers.GPT2Config(**shape, **common, bos_token_id=1, eos_token_id=1)
        return transformers.GPT2LMHeadModel(config)
    shape = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 20, **common}
    if family is Family.ROBERTA:
        config = transformers.RobertaConfig(max_position_embeddings=14, type_vocab_size=1, **shape)
        return transformers.RobertaForMaskedLM(config)
    return transformers.BertForPreTraining(transformers.BertConfig(max_position_embeddings=12, **shape))


@pytest.mark.parametrize("family", Family)
def test_the_closed_form_counts_the_parameters_of_hugging_face_s_models(family):
    with torch.device("meta"):
        model = built(family)
    number = sum(parameter.numel() for parameter in model.parameters())
    if family is Family.BERT:
        number -= 2 * 8 + 2  # the head that judges whether two sentences follow each other
    assert num_parameters(replace(SMALL, family=family)) == number


def test_sizes_are_counts():
    with pytest.raises(ValueError, match="num_layers is 0"):
        replace(SMALL, num_layers=0)
