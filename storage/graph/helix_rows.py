"""Nodes and edges as HelixDB keeps them.

An object is a node `Object`, a relation an edge `Relation` with its label as a property: labels are compared without case,
and one index serves the notes of all. Names that a caller gave to properties have a prefix, so that none can overwrite what
tells a node or its tenant. Words are indexed as our own splitter finds them, so that all graphs find the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from helixdb import dsl

from isotherm.pipeline import text
from isotherm.pipeline.brain.drift import bucket_of
from isotherm.pipeline.brain.graph_port import EdgeTombstone, GraphEdge, GraphNode, Tombstone
from isotherm.pipeline.brain.links import EdgeKey, fold_label

OBJECT: Final = "Object"
RELATION: Final = "Relation"
# Where an edge came before its end: it holds the place, and any revision of the object is newer.
GHOST: Final = 0
_USER: Final = "user_"
_QUERY_TERMS: Final = 64
_EDGE_FIELDS: Final = ("note", "status", "role", "confidence", "evidence_id", "created_at", "updated_at", "terms")


def node_key(namespace: UUID, object_id: UUID) -> str:
    """What identifies a node among all tenants."""
    return f"{namespace}/{object_id}"


def edge_key(namespace: UUID, key: EdgeKey) -> str:
    """What identifies an edge among all tenants."""
    return f"{namespace}/{key.source}/{key.target}/{key.label}"


def vector_field(model: str, dimension: int) -> str:
    """The property of the vectors of a model; those of another one are never compared with them."""
    return f"embedding_{hashlib.sha256(f'{dimension} {model}'.encode()).hexdigest()[:12]}"


def node_fields(namespace: UUID, node: GraphNode | Tombstone | UUID) -> dict[str, Any]:
    """All properties of a node, those of a ghost for an id alone."""
    object_id = node if isinstance(node, UUID) else node.id
    found: dict[str, Any] = {
        "key": node_key(namespace, object_id),
        "object_id": str(object_id),
        "namespace_id": str(namespace),
        "bucket": bucket_of(object_id),
        "revision": GHOST if isinstance(node, UUID) else node.revision,
        "gone": isinstance(node, Tombstone),
    }
    if isinstance(node, GraphNode):
        found |= _told(node)
    found["fields"] = json.dumps(sorted(found))
    return found


def _told(node: GraphNode) -> dict[str, Any]:
    times = {"created_at": node.created_at, "updated_at": node.updated_at}
    said = {
        "kind": node.kind,
        "title": node.title,
        "summary": node.summary,
        "search_text": node.text,
        "terms": _tokens(node.text),
        **{name: time.isoformat() for name, time in times.items() if time is not None},
    }
    kept: dict[str, Any] = {name: value for name, value in said.items() if value}
    kept |= {_USER + name: value for name, value in node.properties.items() if _is_scalar(value)}
    if node.vector is not None:
        field = vector_field(node.vector_model, len(node.vector))
        kept |= {field: dsl.PropertyValue.f32_array(node.vector), "embedding_model": node.vector_model}
    return kept


def edge_fields(namespace: UUID, edge: GraphEdge | EdgeTombstone) -> dict[str, Any]:
    """All properties of an edge."""
    said = dict(edge.properties) if isinstance(edge, GraphEdge) else {}
    found: dict[str, Any] = {
        "key": edge_key(namespace, edge.key),
        "namespace_id": str(namespace),
        "source": str(edge.key.source),
        "target": str(edge.key.target),
        "label": edge.key.label,
        "folded": fold_label(edge.key.label),
        "bucket": bucket_of(edge.key.source),
        "revision": edge.revision,
        "gone": isinstance(edge, EdgeTombstone),
    }
    told = {**said, "terms": _tokens(str(said.get("note", "")))}
    return found | {name: told[name] for name in _EDGE_FIELDS if told.get(name) not in {None, ""}}


def cleared(fields: Mapping[str, Any], before: Sequence[str] = _EDGE_FIELDS) -> list[str]:
    """Properties that something has no more."""
    return [name for name in before if name not in fields]


def changed(step: dsl.Traversal, fields: Mapping[str, Any], gone: Sequence[str]) -> dsl.Traversal:
    """Set all properties and remove those that are gone, where what is there is older."""
    step = step.where(dsl.Predicate.lt("revision", fields["revision"]))
    for name in gone:
        step = step.remove_property(name)
    for name, value in fields.items():
        step = step.set_property(name, value)
    return step


def query_tokens(query: str) -> str:
    """The words of a query as they are indexed."""
    return " ".join(_token(term) for term in text.terms(query, _QUERY_TERMS))


def _tokens(said: str) -> str:
    return " ".join(_token(term) for term, count in sorted(text.term_counts(said).items()) for _ in range(count))


def _token(term: int) -> str:
    return f"t{term & 0xFFFFFFFFFFFFFFFF:016x}"


def _is_scalar(value: object) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and bool(value.strip()))


def edge_of(row: Mapping[str, Any]) -> EdgeKey:
    """The edge that a row tells of."""
    return EdgeKey(UUID(row["source"]), UUID(row["target"]), str(row["label"]))
