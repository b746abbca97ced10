"""Opening a session over replicas: they are found or started, and become the lanes of an engine."""

import secrets
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from time import monotonic
from typing import Any

from rekindle.assembly.building import defaults_of, open_model
from rekindle.assembly.loaded_engine import Lane, LoadedEngine
from rekindle.assembly.loading.identity import Identity, model_contents
from rekindle.assembly.preparing.preparer import TOKENIZED_AT_ONCE, Preparer
from rekindle.assembly.programs.restore_report import RestoreReport
from rekindle.assembly.routing.pages import page_after
from rekindle.core.concurrency.progress import Progress, Report
from rekindle.core.engine.actors.detokenizer import Detokenizer
from rekindle.core.engine.actors.intake import Intake
from rekindle.core.engine.actors.tokenizing import Tokenizing
from rekindle.core.engine.wiring import Actors
from rekindle.core.errors import ConfigError
from rekindle.formats.families.reading import Family
from rekindle.formats.responses.reading.turns import AnswerTurns
from rekindle.replicas import cluster
from rekindle.replicas.group import ReplicaGroup
from rekindle.replicas.link import ReplicaLink
from rekindle.replicas.programs import ReplicaPrograms
from rekindle.replicas.ray import Ray
from rekindle.replicas.recipe import Recipe, content_of, resolve_model
from rekindle.replicas.remote import RemoteLane, SentPages
from rekindle.replicas.replica import Replica
from rekindle.replicas.status import AttachReply
from rekindle.settings.engine import Settings


def build_over(
    ray: Ray,
    model: str | PathLike[str],
    settings: Settings,
    report: Report,
    *,
    family: Family | None = None,
    revision: str | None = None,
    chat_template: str | None = None,
) -> LoadedEngine:
    """Find or start the replicas of a model, and return an engine with the replicas as lanes, without local devices.

    Args:
        ray: the cluster, and the number and names of replicas.
        model: the model.
        settings: the settings of the session.
        report: the callback for progress.
        family, revision, chat_template: as in `rekindle.open`.

    Raises:
        ConfigError: there is no cluster, or an existing replica with the name has another model or other settings.
        ReplicaLost: a replica's process ended while it opened the model.
        Others: as `rekindle.assembly.building.build`, from a replica.
    """
    began = monotonic()
    checkpoint = open_model(resolve_model(model), report, settings, family, revision, chat_template)
    checkpoint = checkpoint.with_draft_head() if settings.draft == "mtp" else checkpoint  # as in a replica
    recipe = Recipe.of(model, settings, family, revision, chat_template, content_of(checkpoint))
    report(Progress("connecting to Ray", 0, 1, ""))
    cluster.connect(ray.address, lasting=ray.keep)
    cluster.warn_of_shortage(ray)
    report(Progress("connecting to Ray", 1, 1, ""))
    with ExitStack() as resources:
        actors = _actors(ray, recipe, resources)
        replies = _attach(actors, recipe, report)
        pairs = zip(actors, replies, strict=True)
        links = [ReplicaLink(actor, lane, each.number) for lane, (actor, each) in enumerate(pairs)]
        lanes = [_lane_of(link, each) for link, each in zip(links, replies, strict=True)]
        group = ReplicaGroup(links, lanes, ray.keep)
        resources.pop_all()
        resources.callback(group.close)
        about = replies[0].about
        limits = replace(about.limits, lanes=len(actors))
        defaults, unserved = defaults_of(checkpoint, settings, limits)
        preparer = Preparer.of(checkpoint, limits.max_context)
        loaded_engine = LoadedEngine(
            checkpoint=checkpoint,
            family=family,
            settings=replace(about.settings, replicas=ray, route=settings.route, max_waiting=settings.max_waiting),
            limits=limits,
            deployment=about.deployment.repeated(len(actors)),
            defaults=defaults,
            unserved=unserved,
            preparer=preparer,
            lanes=_lanes(lanes, preparer),
            programs=ReplicaPrograms(
                lanes, actors, _restore_report(replies, limits.pool.page_size, monotonic() - began)
            ),
            resources=ExitStack(),
            replicas=group,
            weights_digest=about.weights_digest,
            identity=Identity({**about.identity, **model_contents(checkpoint)}),
            weights_version=about.weights_version,
        )
        return replace(loaded_engine, resources=resources.pop_all())


def _actors(ray: Ray, recipe: Recipe, resources: ExitStack) -> list[Any]:
    """Return the replicas, existing or newly started; `resources` kills the new ones."""
    name, actors = recipe.name(ray), []
    if not ray.keep:  # other processes may have replicas of the same model
        name = f"{name}-{secrets.token_hex(2)}"
    for number in range(ray.count):
        actor = cluster.find(f"{name}-{number}") if ray.keep else None
        if actor is None:
            actor = cluster.start(Replica, f"{name}-{number}", ray, recipe)
            resources.callback(cluster.kill, actor)
        actors.append(actor)
    return actors


def _attach(actors: Sequence[Any], recipe: Recipe, report: Report) -> list[AttachReply]:
    """Attach the session to its replicas, once they have opened the model.

    Raises:
        ConfigError: a replica has another model, other settings, or another version.
    """
    calls = [actor.about.remote() for actor in actors]
    cluster.answers(calls, lambda done: report(Progress("opening replicas", done, len(calls), "replicas")))
    replies: list[AttachReply] = cluster.answers([actor.attach.remote() for actor in actors])
    other = next((each.about for each in replies if each.about.digest != recipe.digest), None)
    if other is not None:
        raise ConfigError(
            f"the existing replica serves {other.model} with other settings, or runs another version of Rekindle: "
            "stop it by `rekindle replicas stop`, or give rekindle.Ray another name"
        )
    if any(each.about.weights_version for each in replies):
        warnings.warn(
            "update_weights has replaced the weights of an existing replica; "
            f"session.update_weights({recipe.model!r}) restores the model's weights",
            stacklevel=2,
        )
    return replies


def _lane_of(link: ReplicaLink, reply: AttachReply) -> RemoteLane:
    """Return the lane of a replica, with its cached prefixes."""
    about = reply.about
    pool = about.limits.pool
    pages = SentPages(about.limits.data * (pool.num_pages + pool.host_pages))
    hashes: list[int] = []
    for page in reply.pages:
        before = hash(page.namespace) if page.parent is None else hashes[page.parent]
        hashes.append(page_after(before, page.key))
    pages.add(hashes)
    return RemoteLane(link, about.status, pages, about.limits, about.weights_version)


def _lanes(lanes: Sequence[RemoteLane], preparer: Preparer) -> tuple[Lane, ...]:
    """Return the lanes of an engine. The remote lane stands in for all actors running in the replica."""
    intake, tokenizer = Intake(preparer, TOKENIZED_AT_ONCE), Tokenizing(preparer, TOKENIZED_AT_ONCE)
    detokenizer = Detokenizer(preparer.tokenizer, AnswerTurns.of(preparer.tokenizer))
    return tuple(
        Lane(
            lane,
            Actors(
                intake=intake,
                tokenizer=tokenizer,
                scheduler=lane,
                stepper=lane,
                settler=lane,
                detokenizer=detokenizer,
                grammars=lane,
                vision=lane,
                host_tier=lane,
                disk_tier=lane,
            ),
        )
        for lane in lanes
    )


def _restore_report(replies: Sequence[AttachReply], page_size: int, seconds: float) -> RestoreReport:
    """Return the report of restored state: the programs of all replicas, and their cached prefixes."""
    reports = [each.about.restored for each in replies]
    nodes = sum(len(each.pages) for each in replies)
    return replace(
        reports[0],
        stored=sum(each.stored for each in reports),
        nodes=nodes,
        tokens=nodes * page_size,
        seconds=seconds,
        spent={},
        compile_seconds=sum(each.compile_seconds for each in reports),
    )
