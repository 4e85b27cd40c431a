"""Small models stand for large ones: the names and the rules are the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from transport.errors import LayoutError
from transport.sharding.models import TensorShape, deepseek, llama
from transport.sharding.parallelism import Parallelism
from transport.sharding.rules import Rule, named, sharded, unmatched

LLAMA = llama.tensors(
    llama.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
)
DEEPSEEK = deepseek.tensors(
    dataclasses.replace(
        deepseek.DEEPSEEK_V3,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=4,
        first_k_dense_replace=1,
        n_routed_experts=8,
        num_attention_heads=4,
        weight_block_size=4,
    )
)


def lay(table, text, **options):
    return sharded(table, Parallelism.parse(text), named(**options))


def boxes(state, name):
    """rank -> [(offset, size), ...]"""
    pieces, found = state[name].layout.pieces(), {}
    for rank, offset, size in zip(pieces.rank, pieces.offset, pieces.size):
        found.setdefault(int(rank), []).append((tuple(offset), tuple(size)))
    return found


def copies(state, name):
    """How many ranks hold each element."""
    layout = state[name].layout
    held = np.zeros(layout.shape, int)
    for places in boxes(state, name).values():
        for offset, size in places:
            held[tuple(slice(o, o + s) for o, s in zip(offset, size))] += 1
    return held


@pytest.mark.parametrize("table", [LLAMA, DEEPSEEK], ids=["llama", "deepseek"])
@pytest.mark.parametrize(
    ("text", "each"),
    [
        ("dp=1", 1),
        ("fsdp=7", 1),
        ("tp=2,fsdp=3", 1),
        ("pp=3,dp=2,fsdp=2", 2),
        ("dp=2,fsdp=2,tp=2,ep=4", 2),
        ("fsdp=8,ep=8", 1),
    ],
)
def test_every_element_of_a_cut_tensor_is_there_as_often_as_there_are_replicas(table, text, each):
    state = lay(table, text)
    assert list(state) == list(table)
    for name in table:
        if name.endswith(("_proj.weight", "lm_head.weight")) and "_a_proj" not in name:
            wanted = each * (2 if "tp=2" in text and "eh_proj" in name else 1)
            assert (copies(state, name) == wanted).all(), name


def test_tensor_parallel_ranks_cut_columns_rows_and_the_vocabulary():
    state = lay(LLAMA, "tp=4", kv_heads=2)
    layer = "model.layers.0."
    assert boxes(state, layer + "self_attn.q_proj.weight")[1] == [((8, 0), (8, 32))]
    assert boxes(state, layer + "self_attn.o_proj.weight")[1] == [((0, 8), (32, 8))]
    assert boxes(state, layer + "mlp.down_proj.weight")[3] == [((0, 36), (32, 12))]
    assert boxes(state, layer + "input_layernorm.weight")[2] == [((0,), (32,))]
    # 50 words on 4 ranks, as torch.chunk would have it.
    sizes = [boxes(state, "lm_head.weight")[rank][0][1][0] for rank in range(4)]
    assert sizes == [13, 13, 13, 11]


def test_ranks_share_key_value_heads_when_there_are_too_few():
    state = lay(LLAMA, "tp=4", kv_heads=2)
    found = boxes(state, "model.layers.0.self_attn.k_proj.weight")
    assert [found[rank][0] for rank in range(4)] == [
        ((0, 0), (4, 32)),
        ((0, 0), (4, 32)),
        ((4, 0), (4, 32)),
        ((4, 0), (4, 32)),
    ]


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(LayoutError, match=r"k_proj\.weight: tp=3 neither divides its 2 heads"):
        lay(LLAMA, "tp=3", kv_heads=2)


def test_a_rule_has_heads_or_none():
    with pytest.raises(LayoutError, match="'x' has 0 heads"):
        Rule("x", tp=0, heads=0)


def test_fsdp_cuts_what_tensor_parallelism_has_cut():
    """As FSDP2 over a parallelised module: dimension 0 of each tensor parallel rank's own rows."""
    state = lay(LLAMA, "fsdp=2,tp=4")
    found = boxes(state, "model.layers.0.self_attn.q_proj.weight")
    first_rows = [found[rank][0][0][0] for rank in range(8)]
    assert first_rows == [0, 8, 16, 24, 4, 12, 20, 28]


def test_stages_hold_their_layers_and_the_ends():
    state = lay(LLAMA, "pp=2,tp=2")
    assert state["model.embed_tokens.weight"].layout.ranks.tolist() == [0, 1]
    assert state["model.layers.2.mlp.up_proj.weight"].layout.ranks.tolist() == [0, 1]
    assert state["model.layers.3.mlp.up_proj.weight"].layout.ranks.tolist() == [2, 3]
    assert state["model.norm.weight"].layout.ranks.tolist() == [2, 3]
    assert state["lm_head.weight"].layout.ranks.tolist() == [2, 3]


def test_experts_are_whole_on_their_rank():
    state = lay(DEEPSEEK, "dp=2,tp=4,ep=8")
    for expert in range(8):
        name = f"model.layers.1.mlp.experts.{expert}.down_proj.weight"
        assert boxes(state, name) == {expert: [((0, 0), (32, 16))]}
    shared = boxes(state, "model.layers.1.mlp.shared_experts.down_proj.weight")
    assert shared[1] == shared[5] == [((0, 4), (32, 4))]
    assert len(boxes(state, "model.layers.1.mlp.gate.weight")) == 8


def test_ranks_left_over_shard_experts_with_fsdp_and_replicate_them_along_dp():
    state = lay(DEEPSEEK, "dp=2,fsdp=8,ep=4")
    found = boxes(state, "model.layers.1.mlp.experts.7.down_proj.weight")
    assert sorted(found) == [3, 7, 11, 15]
    assert found[3] == found[11] == [((0, 0), (16, 16))]
    assert found[7] == found[15] == [((16, 0), (16, 16))]


def test_uneven_experts():
    state = lay(DEEPSEEK, "fsdp=3,ep=3")
    held = [0, 0, 0]
    for expert in range(8):
        (rank,) = boxes(state, f"model.layers.1.mlp.experts.{expert}.up_proj.weight")
        held[rank] += 1
    assert held == [3, 3, 2]


def test_more_ep_ranks_than_experts():
    with pytest.raises(LayoutError, match="ep=16 is more than the model's 8 experts"):
        lay(DEEPSEEK, "dp=16,ep=16")


def test_scales_lie_with_their_weights():
    state = lay(DEEPSEEK, "tp=4")
    name = "model.layers.0.mlp.down_proj.weight"
    assert boxes(state, name)[1] == [((0, 16), (32, 16))]
    assert boxes(state, name + "_scale_inv")[1] == [((0, 4), (8, 4))]


def test_fused_tensors_need_a_rule():
    table = {"layers.0.mlp.gate_up_proj.weight": TensorShape((8, 4), "bfloat16")}
    assert len(lay(table, "fsdp=2")) == 1
    with pytest.raises(LayoutError, match=r"gate_up_proj\.weight is several tensors in one"):
        lay(table, "tp=2")


def test_names_that_no_rule_is_for():
    assert unmatched(LLAMA, named()) == [name for name in LLAMA if "norm" in name]


def test_stacked_experts_by_a_rule_of_ones_own():
    table = {"layers.0.moe.w13": TensorShape((6, 8, 10), "bfloat16")}
    rules = [Rule(r"\.moe\.w13$", tp=1, ep=0)]
    state = sharded(table, Parallelism.parse("tp=6,ep=3,etp=2"), rules)
    assert boxes(state, "layers.0.moe.w13")[3] == [((2, 4, 0), (2, 4, 10))]


def test_a_rule_for_a_dimension_that_is_not_there():
    table = {"bias": TensorShape((4,), "float32")}
    with pytest.raises(LayoutError, match="bias has 1 dimensions, and the rule for 'bias'"):
        sharded(table, Parallelism.parse("tp=2"), [Rule("bias", tp=1)])


def test_no_regular_expression():
    with pytest.raises(LayoutError, match="no regular expression"):
        Rule("(")


def test_scalars_are_everywhere():
    table = {"step": TensorShape((), "int64")}
    state = sharded(table, Parallelism.parse("fsdp=3"), named())
    assert boxes(state, "step") == {rank: [((), ())] for rank in range(3)}


def test_equal_tensors_share_a_layout():
    state = lay(DEEPSEEK, "dp=2,tp=4,ep=8")
    assert len(state) == len(DEEPSEEK)
    assert len(state.layouts) < 90
