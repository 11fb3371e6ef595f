"""Tiny language models of the transformers library: 50 words, no dropout, the same weights on every rank."""

import torch

NAMES = ("gpt2", "bert", "t5", "llama")


def language_model(name, bert="BertForMaskedLM", *, width=8, num_layers=1, seed=0):
    """Return a model by its name, in evaluation mode; `bert` is the class of BERT."""
    import transformers as hf

    sizes = {"hidden_size": width, "num_hidden_layers": num_layers, "num_attention_heads": 2, "intermediate_size": 16}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 16}
    gpt2 = {"n_embd": width, "n_layer": num_layers, "n_head": 2, "n_positions": 16, "bos_token_id": 1}
    gpt2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) | {"eos_token_id": 2}
    t5 = {"d_model": width, "d_kv": 4, "d_ff": 16, "num_layers": num_layers, "num_heads": 2, "dropout_rate": 0.0}
    torch.manual_seed(seed)
    match name:
        case "gpt2":
            model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, **gpt2))
        case "bert":
            model = getattr(hf, bert)(hf.BertConfig(vocab_size=50, **sizes, **still))
        case "llama":
            model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=50, **sizes))
        case "t5":
            model = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=50, decoder_start_token_id=0, **t5))
    return model.eval()
