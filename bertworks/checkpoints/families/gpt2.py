"""GPT-2 (Radford et al. 2019): reads from left to right, norm first; its matrices are stored transposed."""

from bertworks.checkpoints.families.family import Family

_REQUIRED = {
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}  # fmt: skip
FAMILY = Family(
    model_type="gpt2",
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
        "vocab_size": ("vocab_size", 50257),
        "n_embd": ("hidden_size", 768),
        "n_layer": ("num_hidden_layers", 12),
        "n_head": ("num_attention_heads", 12),
        "n_inner": ("intermediate_size", None),
        "n_positions": ("max_position_embeddings", 1024),
        "embd_pdrop": ("hidden_dropout", 0.1),
        "resid_pdrop": ("hidden_dropout", 0.1),
        "attn_pdrop": ("attention_dropout", 0.1),
        "layer_norm_epsilon": ("layer_norm_eps", 1e-5),
        "initializer_range": ("initializer_range", 0.02),
        "activation_function": ("hidden_act", "gelu_new"),
    },
    fixed={
        "type_vocab_size": 0, "direction": "left_to_right", "norm_first": True, "embedding_norm": False,
        "lm_head": "plain", "pooler": "last",
    },
    required=_REQUIRED,
    written=_REQUIRED | {"tie_word_embeddings": True, "dtype": "float32", "use_cache": True},
    pretraining={frozenset({"lm_head"}): "GPT2LMHeadModel", frozenset(): "GPT2Model"},
)  # fmt: skip
