"""The family of DeepSeek-V3: latent attention, routed experts, weights in blocks of FP8. Pure.

Source: config.json, README_WEIGHTS.md and the header of the released checkpoints. Kimi K2 has the
same architecture with other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transport.sharding.models.shape import Table, TensorShape, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

_Named = tuple[str, TensorShape]


@dataclass(frozen=True)
class DeepseekConfig:
    """Fields of config.json that decide about shapes, under its names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    first_k_dense_replace: int
    n_routed_experts: int
    n_shared_experts: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    num_nextn_predict_layers: int
    weight_block_size: int = 128  # of quantization_config; a square
    dtype: str = "bfloat16"  # what is not quantised
    quantised: str = "float8_e4m3fn"


DEEPSEEK_V3 = DeepseekConfig(
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    num_hidden_layers=61,
    first_k_dense_replace=3,
    n_routed_experts=256,
    n_shared_experts=1,
    num_attention_heads=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    num_nextn_predict_layers=1,
)

KIMI_K2 = DeepseekConfig(
    vocab_size=163840,
    hidden_size=7168,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    num_hidden_layers=61,
    first_k_dense_replace=1,
    n_routed_experts=384,
    n_shared_experts=1,
    num_attention_heads=64,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    num_nextn_predict_layers=0,
)


def tensors(config: DeepseekConfig) -> Table:
    """All tensors in the order of the layers. The layers that predict further tokens come last,
    as layers of their own with embeddings and a head, as the checkpoint has them."""
    table: Table = {}
    table.update(_plain(config, "model.embed_tokens.weight", config.vocab_size, config.hidden_size))
    for layer in range(config.num_hidden_layers + config.num_nextn_predict_layers):
        prefix = f"model.layers.{layer}."
        table.update(_attention(config, prefix + "self_attn."))
        table.update(_mlp(config, prefix + "mlp.", layer))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            table.update(_plain(config, f"{prefix}{norm}.weight", config.hidden_size))
        if layer >= config.num_hidden_layers:
            table.update(_prediction(config, prefix))
    table.update(_plain(config, "model.norm.weight", config.hidden_size))
    table.update(_plain(config, "lm_head.weight", config.vocab_size, config.hidden_size))
    return table


def _attention(config: DeepseekConfig, prefix: str) -> Iterator[_Named]:
    heads, hidden = config.num_attention_heads, config.hidden_size
    query, latent = config.q_lora_rank, config.kv_lora_rank
    queries = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim)
    keys_and_values = heads * (config.qk_nope_head_dim + config.v_head_dim)
    yield from _linear(config, prefix + "q_a_proj", query, hidden)
    yield from _plain(config, prefix + "q_a_layernorm.weight", query)
    yield from _linear(config, prefix + "q_b_proj", queries, query)
    rotary = config.qk_rope_head_dim
    yield from _linear(config, prefix + "kv_a_proj_with_mqa", latent + rotary, hidden)
    yield from _plain(config, prefix + "kv_a_layernorm.weight", latent)
    yield from _linear(config, prefix + "kv_b_proj", keys_and_values, latent)
    yield from _linear(config, prefix + "o_proj", hidden, heads * config.v_head_dim)


def _mlp(config: DeepseekConfig, prefix: str, layer: int) -> Iterator[_Named]:
    if layer < config.first_k_dense_replace:
        yield from _gated(config, prefix, config.intermediate_size)
        return
    experts, inner = config.n_routed_experts, config.moe_intermediate_size
    yield from _plain(config, prefix + "gate.weight", experts, config.hidden_size)
    yield prefix + "gate.e_score_correction_bias", TensorShape((experts,), "float32")
    yield from _gated(config, prefix + "shared_experts.", inner * config.n_shared_experts)
    for expert in range(experts):
        yield from _gated(config, f"{prefix}experts.{expert}.", inner)


def _gated(config: DeepseekConfig, prefix: str, inner: int) -> Iterator[_Named]:
    yield from _linear(config, prefix + "gate_proj", inner, config.hidden_size)
    yield from _linear(config, prefix + "up_proj", inner, config.hidden_size)
    yield from _linear(config, prefix + "down_proj", config.hidden_size, inner)


def _prediction(config: DeepseekConfig, prefix: str) -> Iterator[_Named]:
    hidden, vocabulary = config.hidden_size, config.vocab_size
    yield from _plain(config, prefix + "embed_tokens.weight", vocabulary, hidden)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield from _plain(config, f"{prefix}{norm}.weight", hidden)
    yield from _plain(config, prefix + "eh_proj.weight", hidden, 2 * hidden)
    yield from _plain(config, prefix + "shared_head.head.weight", vocabulary, hidden)


def _linear(config: DeepseekConfig, name: str, rows: int, columns: int) -> Iterator[_Named]:
    """A quantised weight and the reciprocal scale of each of its blocks."""
    shape = (rows, columns)
    yield name + ".weight", TensorShape(shape, config.quantised)
    scales = TensorShape(blocks(shape, config.weight_block_size), "float32")
    yield name + ".weight_scale_inv", scales


def _plain(config: DeepseekConfig, name: str, *shape: int) -> Iterator[_Named]:
    yield name, TensorShape(shape, config.dtype)
