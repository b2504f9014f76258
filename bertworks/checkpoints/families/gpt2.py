"""GPT-2 (Radford et al. 2019): reads from left to right, norm first; its matrices are stored transposed."""

from bertworks.checkpoints.families.family import Family
from bertworks.models.config import PRESETS

_REQUIRED = {
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}  # fmt: skip
FAMILY = Family(
    prefix="transformer.",
    body=("wte.", "wpe.", "h.", "ln_f."),
    table=[
        ("encoder.embeddings.token.weight", ["wte.weight"], "V E"),
        ("encoder.embeddings.position.weight", ["wpe.weight"], "P E"),
        ("encoder.blocks.#.attention.qkv.*", ["h.#.attn.c_attn.*"], "Q H"),
        ("encoder.blocks.#.attention.output.*", ["h.#.attn.c_proj.*"], "H H"),
        ("encoder.blocks.#.attention_norm.*", ["h.#.ln_1.*"], "H"),
        ("encoder.blocks.#.feed_forward.up.*", ["h.#.mlp.c_fc.*"], "I H"),
        ("encoder.blocks.#.feed_forward.down.*", ["h.#.mlp.c_proj.*"], "H I"),
        ("encoder.blocks.#.feed_forward_norm.*", ["h.#.ln_2.*"], "H"),
        ("encoder.norm.*", ["ln_f.*"], "H"),
    ],
    tied={"lm_head.weight": "wte.weight"},
    buffers=frozenset({"h.#.attn.bias", "h.#.attn.masked_bias"}),
    transposed=("qkv.weight", "output.weight", "up.weight", "down.weight"),
    settings={
        "vocab_size": "vocab_size", "n_embd": "hidden_size", "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads", "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
        "embd_pdrop": "hidden_dropout", "resid_pdrop": "hidden_dropout", "attn_pdrop": "attention_dropout",
        "layer_norm_epsilon": "layer_norm_eps", "initializer_range": "initializer_range",
        "activation_function": "hidden_act",
    },
    default=PRESETS["gpt2"],
    required=_REQUIRED,
    written=_REQUIRED | {"tie_word_embeddings": True, "dtype": "float32", "use_cache": True},
    # Its head has no parameters of its own: every state has it.
    pretraining={frozenset(): "GPT2LMHeadModel", frozenset({"lm_head"}): "GPT2LMHeadModel"},
)  # fmt: skip
