"""Train the model in this folder: `python -m shapes.train`, in the folder of the tutorials.

The tower and the decoder are those of SmolVLM, in plain JAX, of the sizes in config.json. A picture and up to four
questions with their answers are one conversation, and the loss is of the answers alone. It takes 20 minutes on two
cores of a CPU, and writes model.safetensors and tokenizer.json.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.flax import save_file
from shapes.scenes import COLOURS, COUNTS, KINDS, MODEL, PLACES, SIDE, draw, questions, shapes_by_chance
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CONFIG: Final = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
TEXT: Final = CONFIG["text_config"]
VISION: Final = CONFIG["vision_config"]
WIDTH: Final[int] = TEXT["hidden_size"]
MERGE: Final[int] = CONFIG["scale_factor"]
"""Patches along a side of the square that is one token."""
PATCHES: Final[int] = SIDE // VISION["patch_size"]
TOKENS: Final = (PATCHES // MERGE) ** 2
"""Tokens of a picture."""
SPECIAL: Final = (
    "<pad>",
    "<|im_start|>",
    "<end_of_utterance>",
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
)
IMAGE: Final = SPECIAL.index("<image>")
OPENING: Final = f"<fake_token_around_image><global-img>{'<image>' * TOKENS}<fake_token_around_image>"
STEPS, PICTURES, TURNS = 3000, 48, 4
DECODER, TOWER = "model.text_model.", "model.vision_model."

Weights = dict[str, jax.Array]
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Pixels (pictures, SIDE, SIDE, 3) from -1 to 1, tokens and a mask of the tokens of answers (pictures, length)."""


def all_pairs() -> list[tuple[str, str]]:
    """Return each question with each of its answers."""
    pairs = [("How many shapes?", count) for count in COUNTS]
    for kind in KINDS:
        pairs += [(f"What colour is the {kind}?", colour) for colour in COLOURS]
        pairs += [(f"Where is the {kind}?", place) for place in PLACES]
    return pairs


def new_tokenizer() -> Tokenizer:
    """Train a byte-level BPE on all questions and answers."""
    texts = [f"User: {question}\nAssistant: {answer}" for question, answer in all_pairs()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT["vocab_size"],
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts * 20, trainer)
    return tokenizer


def tokens_of(turns: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Return the tokens of a conversation about a picture, as the chat template has it, and which are of answers."""
    ids: list[int] = []
    learned: list[bool] = []
    for place, (question, answer) in enumerate(turns):
        before = f"\nUser: {question}" if place else f"<|im_start|>User:{OPENING}{question}"
        for text, is_answer in (
            (f"{before}<end_of_utterance>\nAssistant:", False),
            (f" {answer}<end_of_utterance>", True),
        ):
            part = tokenizer.encode(text).ids
            ids += part
            learned += [is_answer] * len(part)
    return ids, learned


def batches(chance: np.random.Generator, tokenizer: Tokenizer) -> Iterator[Batch]:
    """Draw pictures and conversations without an end."""
    longest = sorted(all_pairs(), key=lambda pair: len(tokens_of([pair], tokenizer)[0]))[-TURNS:]
    length = len(tokens_of(longest, tokenizer)[0])
    while True:
        pixels = np.zeros((PICTURES, SIDE, SIDE, 3), np.float32)
        ids, mask = np.zeros((PICTURES, length), np.int32), np.zeros((PICTURES, length), np.float32)
        for row in range(PICTURES):
            shapes = shapes_by_chance(chance)
            pixels[row] = np.asarray(draw(*shapes)) / 127.5 - 1
            pairs = questions(shapes)
            turns = [pairs[place] for place in chance.permutation(len(pairs))[:TURNS]]
            tokens, learned = tokens_of(turns, tokenizer)
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, learned
        yield pixels, ids, mask


def new_weights(chance: np.random.Generator) -> Weights:
    """Draw the weights, by their names in the file."""

    def normal(*shape: int, deviation: float | None = None) -> jax.Array:
        scale = float(np.prod(shape[1:])) ** -0.5 if deviation is None else deviation
        return jnp.asarray(chance.normal(0, scale, shape), jnp.float32)

    def linear(name: str, outputs: int, inputs: int, *, has_bias: bool = False) -> Weights:
        bias = {f"{name}.bias": jnp.zeros(outputs)} if has_bias else {}
        return {f"{name}.weight": normal(outputs, inputs), **bias}

    def norm(name: str, *, has_bias: bool = False) -> Weights:
        return {f"{name}.weight": jnp.ones(WIDTH)} | ({f"{name}.bias": jnp.zeros(WIDTH)} if has_bias else {})

    embeddings = f"{TOWER}embeddings."
    weights = {
        f"{embeddings}patch_embedding.weight": normal(WIDTH, 3, VISION["patch_size"], VISION["patch_size"]),
        f"{embeddings}patch_embedding.bias": jnp.zeros(WIDTH),
        f"{embeddings}position_embedding.weight": normal(PATCHES**2, WIDTH, deviation=0.3),
        f"{DECODER}embed_tokens.weight": normal(TEXT["vocab_size"], WIDTH, deviation=1.0),
        **norm(f"{TOWER}post_layernorm", has_bias=True),
        **linear("model.connector.modality_projection.proj", WIDTH, MERGE**2 * WIDTH),
        **norm(f"{DECODER}norm"),
        **linear("lm_head", TEXT["vocab_size"], WIDTH),
    }
    for layer in range(VISION["num_hidden_layers"]):
        name, inner = f"{TOWER}encoder.layers.{layer}", VISION["intermediate_size"]
        weights |= norm(f"{name}.layer_norm1", has_bias=True) | norm(f"{name}.layer_norm2", has_bias=True)
        for each in ("q_proj", "k_proj", "v_proj", "out_proj"):
            weights |= linear(f"{name}.self_attn.{each}", WIDTH, WIDTH, has_bias=True)
        weights |= linear(f"{name}.mlp.fc1", inner, WIDTH, has_bias=True)
        weights |= linear(f"{name}.mlp.fc2", WIDTH, inner, has_bias=True)
    for layer in range(TEXT["num_hidden_layers"]):
        name, inner = f"{DECODER}layers.{layer}", TEXT["intermediate_size"]
        weights |= norm(f"{name}.input_layernorm") | norm(f"{name}.post_attention_layernorm")
        for each in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights |= linear(f"{name}.self_attn.{each}", WIDTH, WIDTH)
        weights |= linear(f"{name}.mlp.gate_proj", inner, WIDTH) | linear(f"{name}.mlp.up_proj", inner, WIDTH)
        weights |= linear(f"{name}.mlp.down_proj", WIDTH, inner)
    return weights


def apply(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """Apply a linear layer, with its bias if it has one."""
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def layer_norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """Apply a LayerNorm."""
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + VISION["layer_norm_eps"])
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def rms_norm(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """Apply an RMSNorm."""
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + TEXT["rms_norm_eps"]) * weights[f"{name}.weight"]


def attention(weights: Weights, name: str, x: jax.Array, heads: int, *, is_causal: bool) -> jax.Array:
    """Return attention within sequences (sequences, length, width), before the output projection."""
    shape = (*x.shape[:2], heads, -1)
    q, k, v = (apply(weights, f"{name}.{each}_proj", x).reshape(shape) for each in "qkv")
    if is_causal:
        q, k = rotate(q), rotate(k)
    return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal).reshape(x.shape)


def rotate(x: jax.Array) -> jax.Array:
    """Apply the rope to queries or keys (sequences, length, heads, head width)."""
    half = x.shape[-1] // 2
    frequencies = TEXT["rope_parameters"]["rope_theta"] ** (-jnp.arange(half) / half)
    angles = (jnp.arange(x.shape[1])[:, None] * frequencies)[:, None]
    first, second = x[..., :half], x[..., half:]
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def embeddings_of(weights: Weights, pixels: jax.Array) -> jax.Array:
    """Run the tower: pixels (pictures, SIDE, SIDE, 3) become embeddings (pictures, TOKENS, WIDTH)."""
    count, size, squares = len(pixels), VISION["patch_size"], PATCHES // MERGE
    parts = pixels.reshape(count, PATCHES, size, PATCHES, size, 3).transpose(0, 1, 3, 5, 2, 4)
    kernel = weights[f"{TOWER}embeddings.patch_embedding.weight"].reshape(WIDTH, -1)
    x = parts.reshape(count, PATCHES**2, -1) @ kernel.T + weights[f"{TOWER}embeddings.patch_embedding.bias"]
    x = x + weights[f"{TOWER}embeddings.position_embedding.weight"]
    for layer in range(VISION["num_hidden_layers"]):
        name = f"{TOWER}encoder.layers.{layer}"
        y = layer_norm(weights, f"{name}.layer_norm1", x)
        y = attention(weights, f"{name}.self_attn", y, VISION["num_attention_heads"], is_causal=False)
        x = x + apply(weights, f"{name}.self_attn.out_proj", y)
        y = apply(weights, f"{name}.mlp.fc1", layer_norm(weights, f"{name}.layer_norm2", x))
        x = x + apply(weights, f"{name}.mlp.fc2", jax.nn.gelu(y, approximate=True))
    x = layer_norm(weights, f"{TOWER}post_layernorm", x)
    blocks = x.reshape(count, squares, MERGE, squares, MERGE, WIDTH).swapaxes(2, 3)
    return apply(weights, "model.connector.modality_projection.proj", blocks.reshape(count, TOKENS, -1))


def logits_of(weights: Weights, ids: jax.Array, images: jax.Array) -> jax.Array:
    """Run the decoder on tokens (sequences, length), with the embeddings of a picture in each."""
    x = weights[f"{DECODER}embed_tokens.weight"][ids]
    x = jax.lax.dynamic_update_slice(x, images, (0, jnp.argmax(ids[0] == IMAGE), 0))
    for layer in range(TEXT["num_hidden_layers"]):
        name = f"{DECODER}layers.{layer}"
        y = rms_norm(weights, f"{name}.input_layernorm", x)
        y = attention(weights, f"{name}.self_attn", y, TEXT["num_attention_heads"], is_causal=True)
        x = x + apply(weights, f"{name}.self_attn.o_proj", y)
        y = rms_norm(weights, f"{name}.post_attention_layernorm", x)
        gate = jax.nn.silu(apply(weights, f"{name}.mlp.gate_proj", y))
        x = x + apply(weights, f"{name}.mlp.down_proj", gate * apply(weights, f"{name}.mlp.up_proj", y))
    return apply(weights, "lm_head", rms_norm(weights, f"{DECODER}norm", x))


def loss(weights: Weights, pixels: jax.Array, ids: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the mean loss of the tokens of answers, and the share of them that are the likeliest."""
    logits = logits_of(weights, ids[:, :-1], embeddings_of(weights, pixels))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:])
    right, weight = logits.argmax(-1) == ids[:, 1:], mask[:, 1:] / mask.sum()
    return (losses * weight).sum(), (right * weight).sum()


def train() -> None:
    """Train, and write the files."""
    tokenizer, chance = new_tokenizer(), np.random.default_rng(0)
    weights = new_weights(chance)
    schedule = optax.warmup_cosine_decay_schedule(0, 2e-3, 100, STEPS, 1e-5)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.01))
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Weights, state: Any, *batch: jax.Array) -> tuple[Weights, Any, tuple[jax.Array, jax.Array]]:
        result, slopes = jax.value_and_grad(loss, has_aux=True)(weights, *batch)
        changes, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, changes), state, result

    results = []
    for number, batch in zip(range(1, STEPS + 1), batches(chance, tokenizer), strict=False):
        weights, state, result = step(weights, state, *batch)
        results.append(result)
        if number % 100 == 0:
            mean, right = np.mean(results[-100:], axis=0)
            print(f"step {number}: loss {mean:.3f}, {right:.1%} of the tokens right", flush=True)
    save_file({name: value.astype(jnp.bfloat16) for name, value in weights.items()}, MODEL / "model.safetensors")
    tokenizer.save(str(MODEL / "tokenizer.json"))


if __name__ == "__main__":
    train()
