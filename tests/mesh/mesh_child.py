"""Sessions over the virtual devices of a CPU, in a process of its own: XLA makes devices when it starts."""

import io
import json
import os
import sys
import warnings
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any, cast
from unittest import mock

DEVICES = 8
# More threads than cores, or collectives of several devices wait for each other; and an early end if they do.
os.environ["NPROC"] = "16"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={DEVICES} --xla_cpu_collective_call_terminate_timeout_seconds=30"
)

import anyio  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import rekindle  # noqa: E402
from rekindle.__main__ import main  # noqa: E402
from rekindle.assembly import devices  # noqa: E402
from rekindle.assembly.loading import budget, planning  # noqa: E402
from rekindle.assembly.loading.blueprint import Blueprint  # noqa: E402
from rekindle.core.buckets import Bucket  # noqa: E402
from rekindle.core.device.place import Place  # noqa: E402
from rekindle.core.device.programs.executables import Executables  # noqa: E402
from rekindle.core.device.programs.functions import EMPTY, GATHER  # noqa: E402
from rekindle.core.device.programs.key import ProgramKey  # noqa: E402
from rekindle.core.device.programs.lowering import Programs  # noqa: E402
from rekindle.core.device.state import Sizes  # noqa: E402
from rekindle.core.models.config import ModelConfig  # noqa: E402
from rekindle.core.models.weights.form import WeightForm  # noqa: E402
from rekindle.core.scheduler.drafts.gain import Chances  # noqa: E402
from rekindle.formats.checkpoints.open import open_checkpoint  # noqa: E402
from rekindle.results.facts.traffic import Wire  # noqa: E402
from rekindle.session.about import SessionCard  # noqa: E402
from rekindle.settings.engine import Implementation, KvDtype, Settings, SettingsOptions  # noqa: E402
from tests.engine.pictured import GREEDY, messages_of  # noqa: E402
from tests.engine.reports import report_of  # noqa: E402
from tests.engine.small import FEW_PAGES  # noqa: E402
from tests.two_steps import OPTIONS, SETTINGS  # noqa: E402
from tests.unit.lora import config_of, random_parts, tensors_of  # noqa: E402

SIZES = Sizes(9, 16, 8, 4, 5)
DRAWN: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 3, "logprobs": 2, "prompt_logprobs": 1}


def serve(
    model: Path, tensor: int, data: int = 1, replicas: int = 1, kv_dtype: KvDtype | None = None
) -> dict[str, Any]:
    """Answer on so many devices: alone, in a batch that preempts, from the cache, and by chance."""
    prompt = np.load(model / "golden.npz")["greedy_prompt"].tolist()
    options: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
    settings: SettingsOptions = {
        **FEW_PAGES, "tensor": tensor, "data": data, "replicas": replicas, "kv_dtype": kv_dtype
    }  # fmt: skip
    with rekindle.open_sync(model, progress=False, **settings) as session:
        alone = session.generate_sync(token_ids=prompt, **options)
        batch = session.generate_sync(token_ids=[prompt[:5], prompt, prompt[3:], prompt[1:]], **options)
        again = session.generate_sync(token_ids=prompt, **options)
        many = session.generate_sync(token_ids=[prompt[place:] for place in range(6)], **options)
        adjusted = session.generate_sync(token_ids=prompt, frequency_penalty=0.7, logit_bias={5: 1.0}, **options)
        sampled = session.generate_sync(token_ids=prompt, max_tokens=12, ignore_eos=True, **DRAWN)
        states = [session.embed_sync(token_ids=[prompt, prompt[5:], [7] * 40], pooling=way) for way in ("last", "mean")]
        return {
            "states": np.stack(states).tolist(),
            "tokens": [each.token_ids for each in (alone, *batch, again, *many, adjusted)],
            "drawn": sampled.token_ids,
            "logprobs": [each.logprob for each in sampled.logprobs or ()],
            "lanes": [lane.generated_tokens for lane in session.stats.lanes],
            **report_of(session, alone, again),
        }


def pictured(model: Path, tensor: int, data: int = 1, replicas: int = 1) -> dict[str, Any]:
    """Answer two prompts with images on so many devices, and one of them twice."""
    prompts = [messages_of(number) for number in (0, 1, 0)]
    settings: SettingsOptions = {
        "dtype": "float32", "restore": "off", "page_size": 16, "tensor": tensor, "data": data, "replicas": replicas
    }  # fmt: skip
    with rekindle.open_sync(model, progress=False, **settings) as session:
        answers: Any = session.generate_sync(cast(Any, prompts), **GREEDY)
        return {"tokens": [each.token_ids for each in answers], "embedded": session.stats.scheduler.embedded_pictures}


def exchanged(model: Path, replicas: int) -> dict[str, Any]:
    """Open lanes, exchange their weights for others and back; return their answers, places and memory."""
    prompts = [[place, 7, 3] for place in range(2 * replicas)]
    settings: SettingsOptions = {**FEW_PAGES, "replicas": replicas, "restore": "off"}
    with rekindle.open_sync(model, progress=False, **settings) as session:
        first = session.generate_sync(token_ids=prompts, max_tokens=6, ignore_eos=True)
        arrays = open_checkpoint(model).tensors
        session.update_weights_sync({name: np.roll(np.asarray(arrays[name]), 1, 0) for name in arrays})
        other = session.generate_sync(token_ids=prompts, max_tokens=6, ignore_eos=True)
        session.update_weights_sync(model)
        again = session.generate_sync(token_ids=prompts, max_tokens=6, ignore_eos=True)
        return {
            "places": [
                [device.id for device in lane.place.devices] for lane in session._engine.facts.lanes if lane.place
            ],
            "memory": [session.memory.weights, session.memory.devices],
            "tokens": [[each.token_ids for each in answers] for answers in (first, other, again)],
            "lanes": [lane.generated_tokens for lane in session.stats.lanes],
        }


def apart(model: Path, prefill: int, decode: int, kv_dtype: KvDtype | None = None) -> dict[str, Any]:
    """Answer with prompts computed by so many devices, and all else by others, in four starts."""
    names = [f"cpu:{place}" for place in range(prefill + decode)]
    sets: dict[str, Any] = {"prefill": names[:prefill], "decode": names[prefill:], "prefill_from": 16}
    settings: Any = {**FEW_PAGES, "num_pages": 16, "kv_dtype": kv_dtype, **(sets if prefill else {})}
    prompts = [[place + 3] * size for place, size in enumerate((40, 20, 5, 33))]
    tokens, moved = [], []
    for restore in ("off", "auto", "auto", "auto"):
        with rekindle.open_sync(model, progress=False, restore=restore, **settings) as session:
            answers = session.generate_sync(token_ids=prompts, max_tokens=12, ignore_eos=True)
            sampled = session.generate_sync(token_ids=prompts[0], max_tokens=12, ignore_eos=True, **DRAWN)
            if restore == "auto":
                session.save_sync(progress=False)
            tokens.append([*(each.token_ids for each in answers), sampled.token_ids])
            moved.append(session.stats.scheduler.moved_pages)
    stats = session.stats
    return {
        "tokens": tokens,
        "moved": moved,
        "compilations": stats.compilations,
        "unexpected": stats.unexpected_compilations,
        "repr": str(session._engine.facts.deployment),
    }


def settings_of(options: dict[str, Any], patches: ExitStack) -> Any:
    """Return settings of `open`.

    Args:
        options: other settings. A mesh has "axes", the names and sizes, and "order", the ids of its devices. With
            "memory", each device seems to have so many bytes of its own, as long as the patches are there.
    """
    if "axes" in options:
        order = np.array([jax.devices()[place] for place in options.pop("order")])
        axes = options.pop("axes")
        options["mesh"] = jax.sharding.Mesh(order.reshape([*axes.values()]), [*axes])
    if "memory" in options:
        for module in (devices, budget, planning):
            patches.enter_context(mock.patch.object(module, "shares_memory", return_value=False))
        patches.enter_context(mock.patch.object(budget, "memory_of", return_value=options.pop("memory")))
    return {**FEW_PAGES, "restore": "off", **options}


def choose(model: Path, options: dict[str, Any]) -> list[int] | str:
    """Return the devices for a model, or the error's message; see `settings_of`."""
    with ExitStack() as patches:
        settings, checkpoint = Settings(**settings_of(options, patches)), open_checkpoint(model)
        place = planning.fewest(checkpoint, settings, devices.places_of(settings))
        blueprint = Blueprint.of(checkpoint, settings, place)
        try:
            blueprint.budget.check(blueprint.limits, "it")
        except rekindle.ModelTooLarge as error:
            return str(error)
        return [device.id for device in place.devices]


def open_model(model: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Open a model, and describe it and its devices; see `settings_of`."""
    prompt = np.load(model / "golden.npz")["greedy_prompt"].tolist()
    with (
        ExitStack() as patches,
        rekindle.open_sync(model, progress=False, **settings_of(options, patches)) as session,
    ):
        return {
            "place": [device.id for lane in session._engine.facts.lanes if lane.place for device in lane.place.devices],
            "tensor": session.settings.tensor,
            "tokens": session.generate_sync(token_ids=prompt, max_tokens=6, ignore_eos=True).token_ids,
            "text": SessionCard("it", session._engine.facts, None, None).text(),
            "memory": {"devices": session.memory.devices} | session.memory.on_each,
            "weights": session.memory.weights,
        }


def drafting(model: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Answer with and without drafts, and again after a restart.

    Args:
        model: a model, with a draft head if no other drafts are among the options.
        options: further settings.
    """
    ids, tokens = np.load(model / "golden.npz")["input_ids"][0].tolist()[:40], []
    prompts = [ids, ids[3:], ids[:5], [7, 8, 9] * 5]
    for restore in ("off", "auto", "auto", "auto"):
        settings: Any = {
            **FEW_PAGES,
            "num_pages": 25,
            "draft": "mtp",
            **options,
            "restore": restore,
            "precompile": "all",
        }
        likely = mock.patch.object(Chances, "of", return_value=0.9)  # so each guess is verified
        with likely, rekindle.open_sync(model, progress=False, **settings) as session:
            for more in ({"temperature": 0.0}, DRAWN):
                for draft in (False, None):
                    asks: Any = {
                        **more,
                        "max_tokens": 20,
                        "ignore_eos": True,
                        "draft": draft,
                        "allowed_token_ids": range(5, 9),
                    }
                    answers = session.generate_sync(token_ids=prompts, **asks)
                    tokens.append([each.token_ids for each in answers])
            stats = session.stats
    return {"tokens": tokens, "drafts": stats.scheduler.drafts, "compilations": stats.compilations}


def program(model: Path, tensor: int, implementation: Implementation, data: int = 1, drafts: bool = False) -> str:
    """Return a compiled step of four rows on so many devices, as text; `drafts` adds the model's draft head."""
    programs = programs_of(model, tensor, implementation, data, drafts)
    text: str = cast(jax.stages.Compiled, programs.compile(Bucket(0, 4, proposes=drafts))).as_text() or ""
    return text


def programs_of(
    model: Path, tensor: int, implementation: Implementation, data: int = 1, drafts: bool = False
) -> Programs:
    place = Place(tuple(jax.devices()[: data * tensor]), data)
    return Programs(config_with(model, drafts), SIZES, WeightForm(jnp.dtype("float32")), place, implementation)


def config_with(model: Path, drafts: bool) -> ModelConfig:
    """Return the config of a model, with its draft head or without."""
    checkpoint = open_checkpoint(model)
    return (checkpoint.with_draft_head() if drafts else checkpoint).config


def wire_bytes(model: Path, tensor: int, drafts: bool = False) -> list[int]:
    """Return the bytes of a step of four rows on the wire, of the layers and of the draws, and the number of sums."""
    wire = Wire.of(config_with(model, drafts), tensor)
    return [4 * wire.per_token, 4 * wire.per_sample, wire.sums]


def elsewhere(model: Path, tensor: int) -> list[Any]:
    """Call a program with pages on other devices; return the error, and the numbers of compilations."""
    programs, others = programs_of(model, tensor, "xla"), Place(tuple(jax.devices()[tensor : 2 * tensor]))
    there = Programs(open_checkpoint(model).config, SIZES, WeightForm(jnp.dtype("float32")), others, "xla")
    executables = Executables(programs, 4)
    pages, _ = there.compile(EMPTY)()
    program = executables.obtain(GATHER).result()
    try:
        anyio.run(executables.call, GATHER, program, pages, np.int32(1))
    except RuntimeError as error:
        return [str(error), executables.builder.compilations, executables.builder.unexpected]
    return ["", executables.builder.compilations, executables.builder.unexpected]


def keys(model: Path) -> dict[str, list[str]]:
    """Return the parts in which keys for other meshes differ from the key of two devices."""
    one, two, *_ = jax.devices()

    def key(*devices: jax.Device) -> ProgramKey:
        settings = Settings(**cast(dict[str, Any], FEW_PAGES))
        return Blueprint.of(open_checkpoint(model), settings, Place(devices)).program_keys()(Bucket(0, 4))

    meshes = {"same": (one, two), "turned": (two, one), "one": (one,), "others": (jax.devices()[2], jax.devices()[3])}
    return {name: sorted(key(*devices).explain(key(one, two).parts())) for name, devices in meshes.items()}


def precompiled(model: Path, tensor: int) -> list[Any]:
    """Compile programs by the command, and open the model without compiling any."""
    with redirect_stdout(io.StringIO()) as output:
        status = main(["precompile", str(model), "--mesh", f"tensor={tensor}", *OPTIONS.split(), "--quiet"])
    settings: SettingsOptions = {**SETTINGS, "restore": "require", "tensor": tensor}
    with rekindle.open_sync(model, progress=False, **settings) as session:
        session.generate_sync(token_ids=[1, 2, 3], max_tokens=4)
        return [status, output.getvalue(), session.stats.compilations, session.stats.loads]


def informed(model: Path, tensor: int) -> str:
    """Return the output of `rekindle info` about a model on so many devices."""
    with redirect_stdout(io.StringIO()) as output:
        assert main(["info", str(model), "--mesh", f"tensor={tensor}"]) == 0
    return output.getvalue()


def adapted(model: Path, tensor: int, data: int = 1, replicas: int = 1) -> dict[str, Any]:
    """Answer on so many devices with two adapters and without one, in one batch; the second adapter is replaced."""
    prompt = np.load(model / "golden.npz")["greedy_prompt"].tolist()
    request: dict[str, Any] = {"token_ids": prompt, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}
    config, names = open_checkpoint(model).config, ["one", None, "two", "one"]
    adapters = [random_parts(config, 3, seed, scale=0.03) for seed in range(3)]
    settings: Any = {**FEW_PAGES, "num_pages": 16, "tensor": tensor, "data": data, "replicas": replicas}
    result: dict[str, Any] = {"tokens": [], "logprobs": []}
    with rekindle.open_sync(model, progress=False, restore="off", max_adapter_rank=3, **settings) as session:
        for name, parts in (("one", adapters[0]), ("two", adapters[1]), ("two", adapters[2])):
            session.add_adapter_sync(name, tensors=tensors_of(parts), config=config_of(parts))
            if name == "two":
                answers = [each.result() for each in [session.submit(adapter=name, **request) for name in names]]
                result["tokens"] += [each.token_ids for each in answers]
                result["logprobs"] += [[each.logprob for each in answer.logprobs or ()] for answer in answers]
    return result


def steered(model: Path, tensor: int, data: int = 1, replicas: int = 1) -> dict[str, Any]:
    """Answer on so many devices with and without steering in one batch, and look at the residual stream."""
    inside = np.load(model.parents[1] / "inside.npz")
    values = {name.partition("/")[2]: inside[name] for name in inside if name.startswith(f"{model.name}/")}
    changes: dict[str, Any] = {
        "steer": rekindle.Steering(1, values["vector"], tokens=slice(5, None)),
        "patch": rekindle.Patch(0, values["patch"], tokens=7),
    }
    options: Any = {"token_ids": values["ids"][:20].tolist(), "max_tokens": 12, "ignore_eos": True}
    settings: Any = {**FEW_PAGES, "num_pages": 16, "tensor": tensor, "data": data, "replicas": replicas}
    with rekindle.open_sync(model, progress=False, restore="off", **settings) as session:
        handles = [session.submit(**options, **(changes if place % 2 else {})) for place in range(4)]
        answers = [list(handle.result().token_ids) for handle in handles]
        look = session.look_sync(token_ids=values["ids"].tolist())
    assert look.residual is not None
    error = float(np.abs(look.residual - values["residual"]).max() / np.abs(values["residual"]).max())
    return {"tokens": answers, "golden": values["greedy"].tolist(), "error": error}


def refusal(model: Path, tensor: int, data: int = 1) -> str:
    """Return the error of a session on too many devices, or an empty text."""
    try:
        settings: SettingsOptions = {**FEW_PAGES, "tensor": tensor, "data": data}
        rekindle.open_sync(model, progress=False, **settings).close_sync()
    except rekindle.ConfigError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    # Pages of another number of devices have other bits, and are not used: right, and told at each open here.
    warnings.filterwarnings("ignore", "the stored prefixes of", RuntimeWarning)
    for name, *arguments in json.loads(sys.argv[1]):
        arguments[0] = Path(arguments[0])
        sys.stdout.write(json.dumps(globals()[name](*arguments)) + "\n")
