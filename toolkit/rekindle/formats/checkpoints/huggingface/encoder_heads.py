"""Heads of encoders in a Hugging Face checkpoint, by family: over texts, over tokens, and over masked words."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rekindle.core.errors import CheckpointError, UnsupportedModel
from rekindle.core.models.config import ModelConfig
from rekindle.core.request.request import Pooling
from rekindle.core.text.tokenizer import Tokenizer
from rekindle.formats.checkpoints.heads import HeadLayer, RowNorm, WordHead
from rekindle.formats.checkpoints.huggingface.classifier import activation_of, labels_of, read_activation
from rekindle.formats.checkpoints.uses import Activation, Classifier
from rekindle.formats.families.reading import ACTIVATIONS
from rekindle.formats.model_file import read_json

Loaders = Mapping[str, Callable[[], Any]]
TOKENS: Final = "ForTokenClassification"
TEXTS: Final = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer before the last product of a head.

    Attributes:
        name: the name of its product.
        activation: an activation of a config, or the key of one behind "=".
        norm: the name of its norm; empty for none.
    """

    name: str
    activation: str
    norm: str = ""


@dataclass(frozen=True, slots=True)
class _Heads:
    """The names of a family's heads.

    Attributes:
        texts, tokens, words: the layers of each head before its last product.
        texts_out: the last product over texts; of tokens, it is "classifier".
        words_out: the matrix of words, unless it is the embedding.
        words_bias: names of the bias of words; the first in the files counts, or the last without the embedding.
    """

    texts: tuple[_Layer, ...]
    words: tuple[_Layer, ...]
    words_out: str
    words_bias: tuple[str, ...]
    texts_out: str = "classifier"
    tokens: tuple[_Layer, ...] = ()


_PREDICTIONS: Final = "cls.predictions"
_LM_HEAD: Final = _Layer("lm_head.dense", "gelu", "lm_head.layer_norm")
_OF_LM_HEAD: Final = ((_LM_HEAD,), "lm_head.decoder.weight", ("lm_head.bias", "lm_head.decoder.bias"))
_OF_BERT: Final = (f"{_PREDICTIONS}.decoder.weight", (f"{_PREDICTIONS}.bias", f"{_PREDICTIONS}.decoder.bias"))
_ROBERTA: Final = _Heads((_Layer("classifier.dense", "tanh"),), *_OF_LM_HEAD, "classifier.out_proj")
_MODERN: Final = (_Layer("head.dense", "=classifier_activation", "head.norm"),)
_HEADS: Final[Mapping[str, _Heads]] = {
    "bert": _Heads(
        (_Layer("bert.pooler.dense", "tanh"),),
        (_Layer(f"{_PREDICTIONS}.transform.dense", "=hidden_act", f"{_PREDICTIONS}.transform.LayerNorm"),),
        *_OF_BERT,
    ),
    "nomic_bert": _Heads(
        (_Layer("nomic_bert.pooler.dense", "tanh"),),
        (_Layer(f"{_PREDICTIONS}.transform.dense", "=hidden_act", f"{_PREDICTIONS}.transform.layer_norm"),),
        *_OF_BERT,
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _ROBERTA,
    "electra": _Heads(
        (_Layer("classifier.dense", "gelu"),),
        (_Layer("generator_predictions.dense", "gelu", "generator_predictions.LayerNorm"),),
        "generator_lm_head.weight",
        ("generator_lm_head.bias",),
        "classifier.out_proj",
    ),
    "distilbert": _Heads(
        (_Layer("pre_classifier", "relu"),),
        (_Layer("vocab_transform", "=activation", "vocab_layer_norm"),),
        "vocab_projector.weight",
        ("vocab_projector.bias",),
    ),
    "modernbert": _Heads(_MODERN, _MODERN, "decoder.weight", ("decoder.bias",), tokens=_MODERN),
}


@dataclass(frozen=True, slots=True)
class EncoderHeads:
    """The heads in the files of an encoder; None for each that they have not.

    Attributes:
        texts: the head that classifies texts, or ranks pairs of them.
        tokens: the head that classifies tokens.
        words: the head over masked words.
    """

    texts: Classifier | None = None
    tokens: Classifier | None = None
    words: WordHead | None = None


@dataclass(frozen=True, slots=True)
class _Files:
    """The files with a head.

    Attributes:
        settings: the content of config.json.
        loaders: loaders of the tensors by name.
        config: the structure of the model.
        source: path of the model, for error messages.
    """

    settings: Mapping[str, Any]
    loaders: Loaders
    config: ModelConfig
    source: str

    def tensor(self, name: str) -> Any:
        """Return a tensor as float32.

        Raises:
            CheckpointError: the files lack it.
        """
        if name not in self.loaders:
            raise CheckpointError(f"{self.source}: missing {name} of the head. Fetch the model again")
        return np.asarray(self.loaders[name]()).astype(np.float32)

    def either(self, *names: str) -> Any:
        """Return the first of some tensors that the files have, or None."""
        return next((self.tensor(name) for name in names if name in self.loaders), None)

    def layer(self, layer: _Layer) -> HeadLayer:
        """Return a layer of a head."""
        name = layer.activation
        if name.startswith("="):
            name = self.settings.get(name[1:]) or ("silu" if self.config.family == "nomic_bert" else "gelu")
        activation = ACTIVATIONS.get(name, name if name == "tanh" else None)
        if activation is None:
            raise UnsupportedModel(f"{self.source}: the activation {name!r:.80} of a head is not supported")
        norm = None
        if layer.norm:
            eps = self.config.norm.eps
            norm = RowNorm(self.tensor(f"{layer.norm}.weight"), self.either(f"{layer.norm}.bias"), eps)
        return HeadLayer(self.tensor(f"{layer.name}.weight"), self.either(f"{layer.name}.bias"), activation, norm)

    def classifier(self, layers: tuple[_Layer, ...], out: str, activation: Activation) -> Classifier:
        """Return a head over texts or tokens.

        Raises:
            CheckpointError: a tensor is missing or has a wrong shape.
        """
        weight, bias = self.tensor(f"{out}.weight"), self.either(f"{out}.bias")
        labels = labels_of(self.settings, len(weight))
        if weight.shape != (len(labels), self.config.hidden_size):
            raise CheckpointError(
                f"{self.source}: {out}.weight must have the shape {(len(labels), self.config.hidden_size)} by the "
                f"config, got {weight.shape}"
            )
        pooling: Pooling = "mean" if self.settings.get("classifier_pooling") == "mean" else "cls"
        return Classifier(weight, labels, activation, bias, tuple(map(self.layer, layers)), pooling)


def read_heads(
    settings: Mapping[str, Any],
    loaders: Loaders,
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    directory: Path,
) -> EncoderHeads:
    """Read the heads of an encoder, by its architecture.

    Args:
        settings: the content of config.json.
        loaders: loaders of all tensors, by name.
        config: the structure of the model.
        tokenizer: the tokenizer, for the token of a missing word.
        directory: the model directory.

    Raises:
        CheckpointError: a tensor of a head is missing or has a wrong shape.
        UnsupportedModel: an activation is not supported.
    """
    heads = _HEADS.get(config.family)
    names = [str(name) for name in settings.get("architectures") or ()]
    if heads is None:
        return EncoderHeads()
    files = _Files(settings, loaders, config, str(directory))
    if any(name.endswith(TEXTS) for name in names):
        own = read_activation(settings, directory)
        count = len(labels_of(settings, 0))
        return EncoderHeads(texts=files.classifier(heads.texts, heads.texts_out, activation_of(settings, own, count)))
    if any(name.endswith(TOKENS) for name in names):
        return EncoderHeads(tokens=files.classifier(heads.tokens, "classifier", "softmax"))
    return EncoderHeads(words=_words(files, heads, tokenizer, directory))


def _words(files: _Files, heads: _Heads, tokenizer: Tokenizer | None, directory: Path) -> WordHead | None:
    """Return the head over masked words, or None if the files have none."""
    own = read_json(directory / "tokenizer_config.json").get("mask_token")
    text = own.get("content") if isinstance(own, Mapping) else own
    candidates = [text] if isinstance(text, str) else ["[MASK]", "<mask>"]
    ids = {} if tokenizer is None else {each: tokenizer.backend.token_to_id(each) for each in candidates}
    mask = next(((each, token) for each, token in ids.items() if token is not None), None)
    if mask is None or not all(f"{layer.name}.weight" in files.loaders for layer in heads.words):
        return None
    embedding = f"{files.config.names.embedding}.weight"
    is_tied = files.settings.get("tie_word_embeddings", True) is not False or heads.words_out not in files.loaders
    weight = files.loaders[embedding if is_tied else heads.words_out]
    layers = tuple(map(files.layer, heads.words))
    return WordHead(
        layers, weight, files.either(*(heads.words_bias if is_tied else heads.words_bias[::-1])), mask[1], mask[0]
    )
