"""Small models of Hugging Face with the same random weights on every rank, a block on a mesh, and texts of refusals."""

import torch
import torch.distributed as dist

from workbench.parallel import ProcessTensorGroup
from workbench.techniques.atp.runtime import BlockConfig, Mesh, MeshBlock

VOCABULARY = 40
HIDDEN = 16


def language_model(kind="gpt2", dropout=0.0, dtype=torch.float64, num_layers=2, **more):
    """Make a small model; in float64 what is left out or counted twice cannot hide in rounding."""
    import transformers

    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"n_embd": HIDDEN, "n_layer": num_layers, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 16}
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        names = {"bos_token_id": 1, "eos_token_id": 2, "loss_type": "ForCausalLM"}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **rates, **names, **more)).to(dtype)
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": 4, "intermediate_size": 32, "num_hidden_layers": num_layers}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=16, **sizes, **rates, **more)
    return transformers.BertForMaskedLM(config).to(dtype)


def step_of_a_block(group, kept):
    """Go through a block on a mesh (2, 1) of a group, forward and backward; `kept` holds the block between steps."""
    if not kept:
        alone, _ = dist.new_subgroups(1)
        axes = ProcessTensorGroup(group), ProcessTensorGroup(alone)
        mesh = Mesh(dist.device_mesh.init_device_mesh("cpu", (2, 1)), *axes, whole=ProcessTensorGroup(group))
        kept["block"] = MeshBlock(BlockConfig(hidden_size=8, num_heads=2, mlp_size=8), mesh)
    kept["block"](torch.ones(1, 2, 8)).sum().backward()
