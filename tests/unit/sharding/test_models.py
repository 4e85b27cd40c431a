"""Counts are those of the released checkpoints: what safetensors headers and papers say."""

from __future__ import annotations

import math
import re

import pytest

from transport.errors import InvalidUse
from transport.memory.dtypes import ITEMSIZES
from transport.sharding.models import MODELS, TensorShape, elements, nbytes, published, recast


@pytest.fixture(scope="module")
def deepseek():
    return published("deepseek-v3").tensors()


def count(table, dtype):
    return sum(math.prod(it.shape) for it in table.values() if it.dtype == dtype)


def test_deepseek_v3_has_the_elements_that_its_checkpoint_lists_by_type(deepseek):
    assert count(deepseek, "float8_e4m3fn") == 680_571_043_840
    assert count(deepseek, "bfloat16") == 3_918_786_560
    assert count(deepseek, "float32") == 41_555_600
    assert elements(deepseek) == 684_531_386_000
    assert len(deepseek) == 91_991


def test_deepseek_v3_is_the_671b_of_its_paper_and_a_layer_that_predicts(deepseek):
    weights = recast(deepseek, "bfloat16")
    main = {n: it for n, it in weights.items() if not n.startswith("model.layers.61.")}
    assert elements(main) == 671_026_419_200
    further = elements(weights) - elements(main)
    shared = 2 * 129_280 * 7168  # the embeddings and the head, which the paper does not count again
    assert round((further - shared) / 1e9, 1) == 11.6


def test_deepseek_v3_names_and_shapes(deepseek):
    layer = "model.layers.3."
    assert deepseek[layer + "self_attn.kv_a_proj_with_mqa.weight"].shape == (576, 7168)
    assert deepseek[layer + "self_attn.kv_a_proj_with_mqa.weight_scale_inv"].shape == (5, 56)
    assert deepseek[layer + "mlp.gate.e_score_correction_bias"] == TensorShape((256,), "float32")
    assert deepseek[layer + "mlp.experts.255.down_proj.weight"].shape == (7168, 2048)
    assert deepseek["model.layers.2.mlp.gate_proj.weight"].shape == (18432, 7168)
    assert "model.layers.2.mlp.experts.0.gate_proj.weight" not in deepseek
    assert deepseek["model.layers.61.eh_proj.weight"].shape == (7168, 14336)
    assert deepseek["lm_head.weight"] == TensorShape((129_280, 7168), "bfloat16")


def test_kimi_k2_has_the_trillion_that_its_checkpoint_has():
    kimi = published("kimi-k2").tensors()
    assert elements(kimi) == pytest.approx(1_026_470_731_056, rel=1e-8)
    assert elements(recast(kimi, "bfloat16")) == pytest.approx(1_026_408_235_864, rel=1e-8)
    assert kimi["model.layers.60.mlp.experts.383.up_proj.weight"].shape == (2048, 7168)
    assert not any(name.startswith("model.layers.61.") for name in kimi)


def test_llama_3_405b():
    llama = published("llama-3-405b")
    table = llama.tensors()
    assert elements(table) == 405_853_388_800
    assert nbytes(table) == 2 * 405_853_388_800
    assert table["model.layers.125.self_attn.k_proj.weight"].shape == (1024, 16384)
    assert llama.kv_heads == 8


@pytest.mark.parametrize("name", MODELS)
def test_every_type_is_one_that_can_be_moved(name):
    table = published(name).tensors()
    assert {it.dtype for it in table.values()} <= set(ITEMSIZES)
    scaled = {n for n in table if n.endswith(".weight_scale_inv")}
    assert {re.sub("_scale_inv$", "", n) for n in scaled} <= set(table)


def test_recast_leaves_scales_out(deepseek):
    plain = recast(deepseek, "bfloat16")
    assert not any("scale" in name for name in plain)
    assert {it.dtype for it in plain.values()} == {"bfloat16"}


def test_an_unknown_model_is_told_the_known_ones():
    with pytest.raises(InvalidUse, match="deepseek-v3, kimi-k2, llama-3-405b"):
        published("gpt-5")
