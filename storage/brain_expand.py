"""What is around objects: walked in the graph, and told only as far as PostgreSQL says the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

from uuid_utils.compat import uuid7

from isotherm.pipeline.brain.answers import Relation
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.errors import ObjectIdRequiredError, ObjectNotFoundError
from isotherm.pipeline.brain.expand import SIBLINGS, Mode, Wanted, mode_of, split_labels
from isotherm.pipeline.brain.graph_port import GraphPort
from isotherm.pipeline.brain.links import Edge, EdgeKey
from isotherm.pipeline.brain.objects import Object, namespace_uuid
from isotherm.pipeline.brain.observing import Op, OpObserver, observed
from isotherm.pipeline.brain.recipes import ExpandRecipe, Recipes
from isotherm.pipeline.brain.result_sets import Kept, ResultSet, SearchContext, cursor
from isotherm.pipeline.brain.walk import CALLS, HOPS, NEIGHBORS, Budget, Direction, Neighbor, Walked, trails
from isotherm.pipeline.clean import whole_number
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.storage import brain_pages
from isotherm.storage.postgres import brain_edges, brain_read, namespaces
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import of_owner

_GRAPH = "graph"
# Objects of an answer about several.
MANY: Final = 1_000


@dataclass(frozen=True, slots=True)
class Related:
    """An object of an expand, without its content; without relations it is a part, a sibling or the parent.

    Args: depth: hops from the seed, 0 for what is contained; seed_id: the object that was asked about.
    """

    object: Object
    relations: tuple[Relation, ...] = ()
    depth: int = 0
    seed_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Expanded:
    """What is around objects.

    Args: degraded: what was out of reach and left out; truncated: a budget may have hidden something; result_set_id: what
        the rest is kept under, None when all is here or nobody asked for pages; cursor: gives the next page; has_more:
        whether there is one.
    """

    mode: Mode
    items: tuple[Related, ...] = ()
    degraded: tuple[str, ...] = ()
    truncated: bool = False
    result_set_id: UUID | None = None
    cursor: str | None = None
    has_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What an expand asks.

    Args: labels: of edges to follow; none of them, or `contains`, means parts; None means all edges; containment: parts in
        any case; hops: longest way; limit: most objects over edges, and most parts, of each seed; calls: objects whose
        edges are read for each seed; neighbors: most edges of one object; siblings: parts shown on each side of a part; most_hops: where `hops` is cut, visibly; strict: a graph out of reach is an error
        even when parts were asked for too.
    """

    labels: Sequence[str] | None = ()
    direction: Direction = Direction.BOTH
    containment: bool = False
    hops: int = 1
    limit: int = NEIGHBORS
    calls: int = CALLS
    neighbors: int = NEIGHBORS
    siblings: int = SIBLINGS
    most_hops: int = HOPS
    strict: bool = False

    def __post_init__(self) -> None:
        """Raises: RejectedError when hops or limit are no whole number."""
        whole_number(self.hops, "hops")
        whole_number(self.limit, "limit")

    @property
    def budget(self) -> tuple[Budget, bool]:
        """How far to walk, and whether that is less than was asked for."""
        return Budget(self.hops, self.calls, self.neighbors).clamped(self.most_hops)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A walk, with what PostgreSQL says of whom it met."""

    walked: Walked
    objects: dict[UUID, Object]
    edges: dict[EdgeKey, Edge]

    def visible(self, step: Neighbor) -> bool:
        return step.peer in self.objects and step.key in self.edges


class Walks:
    """The verbs of an engine that tell what is around objects; threads may share it."""

    config: EngineConfig
    observer: OpObserver | None

    def __init__(self, config: EngineConfig, observer: OpObserver | None = None) -> None:
        self.config = config
        self.observer = observer
        self.recipes = Recipes()

    @property
    def graph(self) -> GraphPort:
        """Where edges are walked. Raises: GraphRequiredError when there is none."""
        raise NotImplementedError

    @of_owner
    def expand(
        self,
        namespace: Namespace,
        object_id: UUID,
        labels: Sequence[str] | None = (),
        *,
        direction: Direction = Direction.BOTH,
        containment: bool = False,
        hops: int = 1,
        limit: int = NEIGHBORS,
        context: SearchContext | None = None,
    ) -> Expanded:
        """What is around an object: its parts, or for a part its parent and siblings; and whom its edges lead to.

        Args: labels: of edges to follow; none of them, or `contains`, means parts; None means all edges; containment:
            parts in any case; hops: longest way, cut visibly; limit: most objects over edges, and most parts; context:
            keeps what is found for later pages of `limit` objects, when it is more than fits into one answer.
        Raises: ObjectIdRequiredError for the nil id; ObjectNotFoundError when the namespace has no such object;
            GraphRequiredError when edges are asked for and there is no graph; TransientError when PostgreSQL cannot be
            reached. A graph out of reach degrades the answer when parts were asked for too, else it is a TransientError.
        """
        most = limit if context is None else self.config.max_result_set
        asked = Around(labels=labels, direction=direction, containment=containment, hops=hops, limit=most)
        with observed(self.observer, Op.EXPAND) as outcome:
            found = expand(self, namespace, object_id, self._within(asked))
            if context is not None:
                found = self._in_pages(found, namespace, context, limit)
            outcome.hits, outcome.degraded = len(found.items), found.degraded
            return found

    @of_owner
    def expand_many(
        self,
        namespace: Namespace,
        object_ids: Sequence[UUID],
        labels: Sequence[str] | None = (),
        *,
        direction: Direction = Direction.BOTH,
        containment: bool = False,
        hops: int = 1,
        most: int = MANY,
    ) -> Expanded:
        """What is around several objects; who is around two of them is told once, with the first.

        Args: object_ids: those that are not there are passed over; most: objects of the answer; as `expand` besides.
        Raises: as `expand`, but nothing degrades and no id is missing.
        """
        asked = Around(labels=labels, direction=direction, containment=containment, hops=hops, limit=most)
        with observed(self.observer, Op.EXPAND_MANY) as outcome:
            found = expand_many(self, namespace, object_ids, self._within(asked), most=most)
            outcome.hits = len(found.items)
            return found

    def register_expand_recipe(self, recipe: ExpandRecipe) -> None:
        """Add a recipe, or replace the one of its name. Raises: RecipeNameRequiredError for a blank name."""
        self.recipes.register(recipe)

    def expand_by_recipe(self, namespace: Namespace, object_id: UUID, name: str, *, limit: int = NEIGHBORS) -> Expanded:
        """Expand as a recipe says. Raises: RecipeNotFoundError for an unknown name; as `expand` besides."""
        recipe = self.recipes.named(name)
        return self.expand(
            namespace,
            object_id,
            recipe.labels,
            direction=recipe.direction,
            containment=recipe.containment,
            hops=recipe.hops,
            limit=limit,
        )

    def _in_pages(self, found: Expanded, namespace: Namespace, context: SearchContext, limit: int) -> Expanded:
        """The first page of an answer that is too long for one, the rest kept; a short one as it is."""
        config = self.config
        if len(found.items) <= config.expand_inline_max:
            return found
        items, page = found.items[: config.max_result_set], max(limit, 1)
        kept = ResultSet(
            uuid7(),
            namespace_uuid(namespace),
            Op.EXPAND.value,
            "",
            tuple(map(_kept, items)),
            config.now(),
            found.degraded,
            found.truncated or len(items) < len(found.items),
        )
        context.put(kept)
        more = len(items) > page
        return replace(
            found,
            items=items[:page],
            truncated=kept.truncated,
            result_set_id=kept.id,
            cursor=cursor(kept.id, page) if more else None,
            has_more=more,
        )

    def _within(self, asked: Around) -> Around:
        """What was asked, with the knobs of this engine."""
        return replace(
            asked,
            calls=self.config.max_graph_calls,
            # A peer may be reached over several edges; of those that the graph still has, some may be gone.
            neighbors=max(self.config.graph_neighbor_k, 2 * asked.limit + 1),
            siblings=self.config.sibling_radius,
            most_hops=self.config.max_expand_hops,
            strict=self.config.fail_on_graph_error,
        )


def _kept(item: Related) -> Kept:
    return brain_pages.kept(item.object.id, item.relations, item.depth)


class HasGraph(Protocol):
    """Whatever has a graph, or says that it has none."""

    @property
    def graph(self) -> GraphPort:
        """Where edges are walked."""
        ...


def expand(engine: HasGraph, namespace: Namespace, object_id: UUID, around: Around) -> Expanded:
    """What is around an object. Raises: as `Walks.expand`."""
    if object_id.int == 0:
        raise ObjectIdRequiredError("an id is needed")
    wanted, place = split_labels(around.labels, containment=around.containment), namespaces.find(namespace)
    graph = engine.graph if wanted.graph else None
    if place is None:
        raise ObjectNotFoundError(f"no object {object_id} in this namespace")
    degraded: tuple[str, ...] = ()
    try:
        seen = _walk(graph, namespace, place, [object_id], wanted, around)
    except TransientError:
        if graph is None or around.strict or not wanted.containment:
            raise
        degraded, wanted = (_GRAPH,), replace(wanted, labels=())
        seen = _walk(None, namespace, place, [object_id], wanted, around)
    if object_id not in seen.objects:
        raise ObjectNotFoundError(f"no object {object_id} in this namespace")
    seed = seen.objects[object_id]
    items, truncated = _around(place, seed, seen, wanted, around)
    return Expanded(mode_of(wanted, seed_is_part=seed.is_part), tuple(items), degraded, truncated)


def expand_many(
    engine: HasGraph, namespace: Namespace, object_ids: Sequence[UUID], around: Around, *, most: int
) -> Expanded:
    """What is around several objects. Raises: as `Walks.expand_many`."""
    wanted, place = split_labels(around.labels, containment=around.containment), namespaces.find(namespace)
    graph = engine.graph if wanted.graph else None
    ids = list(dict.fromkeys(object_ids))
    if place is None or not ids:
        return Expanded(mode_of(wanted, seed_is_part=False))
    seen = _walk(graph, namespace, place, ids, wanted, around)
    seeds = [seen.objects[each] for each in ids if each in seen.objects]
    told: dict[UUID, Related] = {}
    truncated = False
    for seed in seeds:
        items, cut = _around(place, seed, seen, wanted, around)
        truncated |= cut
        for item in items:
            told.setdefault(item.object.id, item)
    mode = mode_of(wanted, seed_is_part=bool(seeds) and all(seed.is_part for seed in seeds))
    return Expanded(mode, tuple(told.values())[:most], truncated=truncated or len(told) > most)


def _walk(
    graph: GraphPort | None, namespace: Namespace, place: Place, ids: Sequence[UUID], wanted: Wanted, around: Around
) -> _Seen:
    """The seeds, and neighbors as the graph proposes them, each object and each edge read again under its namespace.

    Three statements in all, however many hops: the walk, the objects, the edges.
    """
    budget, _ = around.budget
    walked = Walked({})
    if graph is not None:
        shared = replace(budget, calls=budget.calls * len(ids))
        walked = graph.walk(namespace_uuid(namespace), ids, wanted.labels, around.direction, shared)
    met = [step for steps in walked.steps.values() for step in steps]
    with connection() as conn:
        objects = brain_read.by_id(conn, place.namespace_id, list({*ids, *(step.peer for step in met)}))
        edges = brain_edges.edges(conn, place.namespace_id, list({step.key for step in met})) if met else {}
    return _Seen(walked, objects, edges)


def _around(place: Place, seed: Object, seen: _Seen, wanted: Wanted, around: Around) -> tuple[list[Related], bool]:
    """Parts first, then who is reached; who is both is told once."""
    contained, more = _contained(place, seed, around) if wanted.containment else ([], False)
    budget, cut = around.budget
    steps, hidden = trails(seed.id, seen.walked, budget, visible=seen.visible)
    reached = {
        step.peer: Related(
            seen.objects[step.peer],
            tuple(Relation(seen.edges[n.key], n.direction) for n in step.steps),
            step.depth,
            seed.id,
        )
        for step in steps[: around.limit]
    }
    parts = {each.id: Related(each, seed_id=seed.id) for each in contained}
    truncated = more or (wanted.graph and (hidden or cut or len(steps) > around.limit))
    # What is contained and reached too keeps its place and tells its edges.
    return list((parts | reached).values()), truncated


def _contained(place: Place, seed: Object, around: Around) -> tuple[list[Object], bool]:
    """The parts of an object; of a part its parent, then the parts around it, itself included."""
    with connection() as conn:
        if seed.parent_id is None:
            found = brain_read.parts(conn, place.namespace_id, seed.id, around.limit + 1)
            return found[: around.limit], len(found) > around.limit
        near = brain_read.siblings(conn, place.namespace_id, seed.parent_id, seed.id, around.siblings)
        objects = brain_read.by_id(conn, place.namespace_id, [seed.parent_id, *near])
    return [objects[i] for i in (seed.parent_id, *near) if i in objects], False
