"""The keys of a `config.json`, with a record of each access, so that no key is ignored silently."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rekindle.core.errors import CheckpointError, UnsupportedModel

# fmt: off
WITHOUT_EFFECT: Final = frozenset({
    "_attn_implementation_autoset", "_name_or_path", "_num_labels", "_sliding_window_pattern", "activation_dropout",
    "add_cross_attention", "architectures", "attention_dropout", "attention_dropout_prob",
    "attention_probs_dropout_prob", "attention_softmax_in_fp32", "attn_pdrop", "auto_map", "aux_loss_alpha",
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cache_implementation", "chunk_size_feed_forward",
    "classifier_activation", "classifier_bias", "classifier_dropout", "classifier_pooling", "cls_token_id",
    "cross_attention_hidden_size", "decoder_bias", "decoder_start_token_id", "deterministic_flash_attn",
    "directionality", "diversity_penalty", "do_sample", "dropout", "dtype", "early_stopping", "embd_pdrop",
    "embed_dropout", "embedding_dropout", "encoder_no_repeat_ngram_size", "eod_token_id", "eos_token_id", "ep_size",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "id2label", "init_std", "initial_context_length",
    "initializer_cutoff_factor", "initializer_range", "input_jitter_noise", "is_decoder", "is_encoder_decoder",
    "is_llama_config", "label2id", "layerdrop", "length_penalty", "mask_token_id", "max_length", "max_window_layers",
    "min_length", "mlp_dropout", "model_max_length", "model_type", "n_ctx", "no_repeat_ngram_size",
    "no_rope_layer_interval", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_past", "output_router_logits", "output_scores", "pad_token_id", "pooler_fc_size",
    "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "prefix",
    "pretraining_tp", "problem_type", "pruned_heads", "qa_dropout", "reference_compile", "remove_invalid_values",
    "reorder_and_upcast_attn", "repad_logits_with_grad", "repetition_penalty", "resid_pdrop", "residual_dropout",
    "return_dict", "return_dict_in_generate", "router_aux_loss_coef", "router_jitter_noise",
    "sbert_ce_default_activation_function", "scale_attention_softmax_in_fp32", "sentence_transformers", "sep_token_id",
    "seq_aux", "seq_classif_dropout", "sliding_window_pattern", "sparse_pred_ignore_index", "sparse_prediction",
    "summary_activation", "summary_first_dropout", "summary_last_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tie_weights_", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache", "use_parallel_embedding",
})
# fmt: on
"""Keys without an effect on a model's computation."""


MOST_LAYERS: Final = 2048
"""Most layers of a model; the deepest published ones have less than two hundred."""


class Keys:
    """A decoded `config.json` with a record of the keys read.

    Args:
        values: the decoded object.
        source: the origin of the config, for error messages.
    """

    def __init__(self, values: Mapping[str, Any], source: str):
        self.source = source
        self._values = values
        self._visited: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or the default if it is missing or null."""
        self._visited.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def renamed(self, names: Mapping[str, str]) -> "Keys":
        """Return the keys with other names of some, unless a key has its name already; their reads count here."""
        values = {names.get(key, key): value for key, value in self._values.items()} | dict(self._values)
        keys = Keys(values, self.source)
        self._visited |= names.keys()
        keys._visited = self._visited
        return keys

    def was_read(self, key: str) -> bool:
        """Return True if the key was read, whether or not it exists."""
        return key in self._visited

    def has(self, key: str) -> bool:
        """Return True if the key exists, possibly with null."""
        return key in self._values

    def size(self, key: str, default: int | None = None) -> int:
        """Return a positive integer.

        Raises:
            CheckpointError: the value is not a positive integer, or is missing without a default.
        """
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.wrong(key, "must be a positive integer", value)
        return value

    def layers(self, key: str, default: int | None = None) -> int:
        """Return a number of layers, at most `MOST_LAYERS`, because readers list all layers before a file is opened.

        Raises:
            CheckpointError: the value is no such number, or is missing without a default.
        """
        count = self.size(key, default)
        if count > MOST_LAYERS:
            raise self.wrong(key, f"must be a number of layers up to {MOST_LAYERS:,}", count)
        return count

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number.

        Raises:
            CheckpointError: the value is not a number, or is missing without a default.
        """
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(key, "must be a number", value)
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        """Return a number, or None if it is missing.

        Raises:
            CheckpointError: the value is not a number.
        """
        return None if self.get(key) is None else self.number(key)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of numbers above 0.

        Raises:
            CheckpointError: the value is missing, or is not a list of such numbers.
        """
        values = self.get(key)
        if not isinstance(values, list) or not all(isinstance(each, int | float) and each > 0 for each in values):
            raise self.wrong(key, "must be a list of numbers above 0", values)
        return tuple(map(float, values))

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean.

        Raises:
            CheckpointError: the value is not a boolean.
        """
        value = self.get(key, default)
        if value not in (True, False):
            raise self.wrong(key, "must be true or false", value)
        return bool(value)

    def below(self, key: str, over: Iterable[str] = ()) -> "Keys":
        """Return the keys of a nested object; no keys if it is missing.

        Args:
            key: the key of the nested object.
            over: keys of this object used as defaults of missing keys in the nested one.
        """
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, "must be an object", value)
        defaults = {name: self._values[name] for name in over if self.get(name) is not None}
        return Keys(
            defaults | {name: each for name, each in value.items() if each is not None}, f"{self.source}: {key}"
        )

    def refuse(self, key: str, *neutral: Any) -> None:
        """Refuse any value but the neutral ones.

        Args:
            key: the key.
            *neutral: the values without effect, besides null.

        Raises:
            UnsupportedModel: the key has another value, which is not implemented.
        """
        value = self.get(key)
        if value is not None and value not in neutral:
            raise UnsupportedModel(f"{self.source}: {key} {value!r:.80} is not supported in this family")

    def unread(self) -> list[str]:
        """Return the keys never read, without nulls and those in `WITHOUT_EFFECT`."""
        others = self._values.keys() - self._visited - WITHOUT_EFFECT
        return sorted(key for key in others if self._values[key] is not None)

    def wrong(self, key: str, expected: str, value: Any) -> CheckpointError:
        """Return the error for an invalid value."""
        return CheckpointError(f"{self.source}: {key} {expected}, got {value!r:.80}")
