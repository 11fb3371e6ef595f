"""Small models of `transformers`, with biases and norms that are not 0 and 1."""

import torch

LAYER_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


def small_model(model: str, config: str, **sizes):
    """Make a model of a class with a configuration of another, both by name."""
    import transformers  # here, so that ranks, which import this file, need not

    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    for parameter in made.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return made
