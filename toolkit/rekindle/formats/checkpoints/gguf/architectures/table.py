"""Supported GGUF architectures, each with its differences from a model family."""

from collections.abc import Mapping
from typing import Final

from rekindle.formats.checkpoints.gguf.architecture import Architecture
from rekindle.formats.checkpoints.gguf.architectures import (
    attention,
    dense,
    encoders,
    experts,
    gemma,
    hybrid,
    latent,
    llama,
)

_BY_LAYER: Final = frozenset({"attention.head_count_kv"})
_OF_PARTS: Final = frozenset({"attention.head_count_kv", "feed_forward_length"})
ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    architecture.name: architecture
    for architecture in (
        Architecture("llama", "llama", llama.llama, permuted=True),
        Architecture("mistral3", "ministral3", permuted=True),
        Architecture("qwen2", "qwen2"),
        Architecture("qwen2vl", "qwen2", attention.sections),
        Architecture("qwen2moe", "qwen2_moe", experts.qwen2_moe),
        Architecture("qwen3", "qwen3", attention.attention_bias),
        Architecture("qwen3vl", "qwen3", attention.qwen3_vl, interleaved_sections=True),
        Architecture("qwen3moe", "qwen3_moe", experts.qwen3_moe),
        Architecture("qwen3vlmoe", "qwen3_moe", experts.qwen3_vl_moe, interleaved_sections=True),
        Architecture("gemma", "gemma", attention.attention_bias, shifted=True),
        Architecture("gemma2", "gemma2", gemma.gemma2, shifted=True),
        Architecture("gemma3", "gemma3_text", gemma.gemma3, shifted=True),
        Architecture("gemma-embedding", "gemma3_text", gemma.gemma_embedding, shifted=True),
        Architecture("gemma3n", "gemma3n_text", gemma.gemma3n, by_layer=frozenset({"feed_forward_length"})),
        Architecture(
            "gemma4",
            "gemma4_text",
            gemma.gemma4,
            parts={"router.scale": ("ffn_gate_inp.scale",), "router.per_expert_scale": ("ffn_down_exps.scale",)},
            by_layer=frozenset({"attention.head_count_kv", "feed_forward_length"}),
        ),
        Architecture("phi3", "phi3", attention.window),
        Architecture("olmo2", "olmo2", dense.olmo),
        Architecture("smollm3", "smollm3", attention.biases, permuted=True),
        Architecture("granite", "granite", dense.granite, permuted=True),
        Architecture(
            "granitemoe",
            "granitemoe",
            dense.granite_moe,
            permuted=True,
            parts={
                "block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps"),
                "shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp"),
            },
        ),
        Architecture("command-r", "cohere", dense.cohere, eps="layer_norm_eps"),
        Architecture("cohere2", "cohere2", dense.cohere2, eps="layer_norm_eps"),
        Architecture("glm4", "glm4", attention.attention_bias),
        Architecture(
            "stablelm",
            "stablelm",
            dense.stablelm,
            eps="layer_norm_eps",
            parts={
                "self_attn.q_layernorm.norms": ("attn_q_norm",),
                "self_attn.k_layernorm.norms": ("attn_k_norm",),
            },
        ),
        Architecture(
            "starcoder2",
            "starcoder2",
            lambda metadata: {"use_bias": metadata.attention_bias} | attention.window(metadata),
            eps="norm_epsilon",
        ),
        Architecture("ernie4_5", "ernie4_5", lambda metadata: {"use_bias": metadata.attention_bias}),
        Architecture(
            "seed_oss",
            "seed_oss",
            lambda metadata: attention.biases(metadata) | {"attention_out_bias": metadata.has("attn_output.bias")},
        ),
        Architecture("hunyuan-dense", "hunyuan_v1_dense", attention.attention_bias),
        Architecture("nemotron", "nemotron", attention.biases, eps="norm_eps", shifted=True),
        Architecture(
            "gpt-oss",
            "gpt_oss",
            dense.gpt_oss,
            parts={"mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps")},
            truncated=False,
        ),
        Architecture("deepseek2", "deepseek_v2", latent.deepseek),
        Architecture("mistral4", "mistral4", latent.mistral4),
        Architecture(
            "gpt2",
            "gpt2",
            lambda _: {"rope_parameters": None, "num_key_value_heads": None},
            eps="layer_norm_epsilon",
        ),
        Architecture("gptneox", "gpt_neox", dense.gpt_neox, eps="layer_norm_eps"),
        Architecture("olmoe", "olmoe", experts.local_experts),
        Architecture("olmo", "olmo", dense.olmo1, eps="layer_norm_eps", permuted=True),
        Architecture("arcee", "arcee", attention.biases, permuted=True),
        Architecture("apertus", "apertus", attention.attention_bias),
        Architecture("chatglm", "glm", attention.attention_bias),
        Architecture("phi2", "phi", eps="layer_norm_eps"),
        Architecture("exaone4", "exaone4", lambda metadata: attention.windows(metadata, period=4)),
        Architecture("glm4moe", "glm4_moe", experts.glm4_moe),
        Architecture("minimax-m2", "minimax_m2", experts.minimax_m2),
        Architecture("dots1", "dots1", experts.dots1),
        Architecture("ernie4_5-moe", "ernie4_5_moe", experts.ernie_moe),
        Architecture(
            "exaone-moe", "exaone_moe", experts.exaone_moe, parts={"mlp.e_score_correction": ("exp_probs_b",)}
        ),
        Architecture("afmoe", "afmoe", experts.afmoe, parts={"mlp.expert": ("exp_probs_b",)}),
        Architecture("hunyuan-moe", "hunyuan_v1_moe", experts.hunyuan_moe),
        Architecture("phimoe", "phimoe", experts.phimoe),
        Architecture(
            "llama4",
            "llama4_text",
            llama.llama4,
            parts={"feed_forward.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps")},
        ),
        Architecture("bert", "bert", encoders.bert, eps="layer_norm_eps", prefix="bert."),
        Architecture("nomic-bert", "nomic_bert", encoders.nomic_bert, eps="layer_norm_eps", prefix="nomic_bert."),
        Architecture("jina-bert-v2", "jina_bert", encoders.jina_bert, eps="layer_norm_eps", prefix="bert."),
        Architecture("modern-bert", "modernbert", encoders.modern_bert, eps="norm_eps", prefix="model."),
        Architecture("lfm2", "lfm2", hybrid.lfm2, by_layer=_BY_LAYER),
        Architecture(
            "lfm2moe",
            "lfm2_moe",
            hybrid.lfm2_moe,
            parts={
                "feed_forward.expert": ("exp_probs_b",),
                "feed_forward.experts.w1": ("ffn_gate_exps",),
                "feed_forward.experts.w2": ("ffn_down_exps",),
                "feed_forward.experts.w3": ("ffn_up_exps",),
            },
            by_layer=_BY_LAYER,
        ),
        Architecture("qwen3next", "qwen3_next", hybrid.qwen3_next, shifted=True),
        Architecture("qwen35", "qwen3_5_text", hybrid.qwen35, shifted=True, tiled=True, interleaved_sections=True),
        Architecture(
            "qwen35moe", "qwen3_5_moe_text", hybrid.qwen35_moe, shifted=True, tiled=True, interleaved_sections=True
        ),
        Architecture(
            "granitehybrid",
            "granitemoehybrid",
            hybrid.granite_hybrid,
            permuted=True,
            parts={
                "block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps"),
                "shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp"),
            },
            by_layer=_BY_LAYER,
        ),
        Architecture("falcon-h1", "falcon_h1", hybrid.falcon_h1, parts={"pre_ff_layernorm": ("ffn_norm",)}),
        Architecture("nemotron_h", "nemotron_h", hybrid.nemotron_h, permuted=True, by_layer=_OF_PARTS),
        Architecture(
            "nemotron_h_moe",
            "nemotron_h",
            hybrid.nemotron_h_moe,
            permuted=True,
            parts={
                "mixer.experts.up_proj": ("ffn_up_exps",),
                "mixer.experts.down_proj": ("ffn_down_exps",),
            },
            by_layer=_OF_PARTS,
        ),
    )
}
"""Supported architectures by name. Files with another architecture are rejected."""
