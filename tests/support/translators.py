"""Networks of Marian from transformers with random weights, and ours with the same."""

import json
from typing import Any

import torch
import transformers

from bertworks.checkpoints.hf_config import config_from_huggingface
from bertworks.checkpoints.hf_mapping import from_huggingface
from bertworks.training.objectives import PretrainingModel

VOCABULARY = 60
PAD, END = VOCABULARY - 1, 0


def marian(seed: int = 0, **settings: Any) -> Any:
    """Return a MarianMTModel, all of whose parameters are random, norms and biases too."""
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        **{
            "vocab_size": VOCABULARY,
            "d_model": 24,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 40,
            "decoder_ffn_dim": 40,
            "max_position_embeddings": 64,
            "activation_function": "swish",
            "scale_embedding": True,
            "pad_token_id": PAD,
            "decoder_start_token_id": PAD,
            "eos_token_id": END,
            "forced_eos_token_id": END,
        }
        | settings
    )
    model = transformers.MarianMTModel(config).eval()
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.15)
    model.final_logits_bias.normal_()
    return model


def settings_of(model: Any) -> dict[str, Any]:
    """Return the content of the config.json of a network of transformers."""
    settings: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return settings


def same_network(model: Any) -> PretrainingModel:
    """Return our network with the configuration and the parameters of one of transformers."""
    config = config_from_huggingface(settings_of(model))
    network = PretrainingModel(config, {"translation": 1.0}).eval()
    network.load_state_dict(from_huggingface(model.state_dict(), config))
    return network
