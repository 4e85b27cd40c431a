"""The family of Llama 3: grouped-query attention and a gated MLP in every layer. Pure.

Source: config.json of the release in the naming of Hugging Face.
"""

from __future__ import annotations

from dataclasses import dataclass

from transport.sharding.models.shape import Table, TensorShape


@dataclass(frozen=True)
class LlamaConfig:
    """Fields of config.json that decide about shapes, under its names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    dtype: str = "bfloat16"


LLAMA_3_405B = LlamaConfig(
    vocab_size=128256,
    hidden_size=16384,
    intermediate_size=53248,
    num_hidden_layers=126,
    num_attention_heads=128,
    num_key_value_heads=8,
)


def tensors(config: LlamaConfig) -> Table:
    """All tensors in the order of the layers; the head has weights of its own."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer(config).items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}
    return {name: TensorShape(shape, config.dtype) for name, shape in shapes.items()}


def _layer(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    head = hidden // config.num_attention_heads
    keys = config.num_key_value_heads * head
    return {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
