"""The values of a run as JSON, as they stand in the answers of its steps. Vectors are packed: half the size of digits."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

import numpy as np
from pydantic import TypeAdapter

from isotherm.pipeline.interest.candidates import Candidate, HistPoint, Kind, Outcome, Point, Status, Vector
from isotherm.pipeline.interest.s1 import Merge
from isotherm.pipeline.interest.s2 import ClusterResult

Json = dict[str, Any]

_CANDIDATES = TypeAdapter(list[Candidate])
_OUTCOMES = TypeAdapter(list[Outcome])
_CLUSTERS = TypeAdapter(ClusterResult)
_MERGES = TypeAdapter(list[Merge])
_FIELDS = TypeAdapter(Json)


def dump_candidates(candidates: Sequence[Candidate]) -> list[Json]:
    """Candidates as JSON."""
    dumped: list[Json] = _CANDIDATES.dump_python(list(candidates), mode="json")
    return dumped


def load_candidates(raw: Sequence[Json]) -> list[Candidate]:
    """Candidates from JSON."""
    return _CANDIDATES.validate_python(list(raw))


def dump_points(points: Sequence[Point]) -> list[Json]:
    """Points as JSON, each with its vector."""
    words = dump_candidates([p.candidate for p in points])
    return [{"candidate": c, "vec": pack(p.vec)} for c, p in zip(words, points, strict=True)]


def load_points(raw: Sequence[Json]) -> list[Point]:
    """Points from JSON."""
    candidates = load_candidates([one["candidate"] for one in raw])
    return [Point(c, unpack(one["vec"])) for c, one in zip(candidates, raw, strict=True)]


def dump_history(points: Sequence[HistPoint]) -> list[Json]:
    """Stored points as JSON, each with its vector."""
    return [{**_FIELDS.dump_python(_fields(p), mode="json"), "vec": pack(p.vec)} for p in points]


def load_history(raw: Sequence[Json]) -> list[HistPoint]:
    """Stored points from JSON."""
    return [_hist(one) for one in raw]


def _fields(point: HistPoint) -> Json:
    return {field.name: getattr(point, field.name) for field in fields(point) if field.name != "vec"}


def _hist(raw: Json) -> HistPoint:
    return HistPoint(
        id=UUID(raw["id"]),
        name=raw["name"],
        summary=raw["summary"],
        tags=tuple(raw["tags"]),
        kind=Kind(raw["kind"]),
        status=Status(raw["status"]),
        confidence=raw["confidence"],
        importance=raw["importance"],
        reliability=raw["reliability"],
        last_seen_at=None if raw["last_seen_at"] is None else datetime.fromisoformat(raw["last_seen_at"]),
        version=raw["version"],
        vec=unpack(raw["vec"]),
    )


def dump_outcomes(outcomes: Sequence[Outcome]) -> list[Json]:
    """Outcomes as JSON."""
    dumped: list[Json] = _OUTCOMES.dump_python(list(outcomes), mode="json")
    return dumped


def load_outcomes(raw: Sequence[Json]) -> list[Outcome]:
    """Outcomes from JSON."""
    return _OUTCOMES.validate_python(list(raw))


def dump_merges(merges: Sequence[Merge]) -> list[Json]:
    """Merges as JSON."""
    dumped: list[Json] = _MERGES.dump_python(list(merges), mode="json")
    return dumped


def load_merges(raw: Sequence[Json]) -> list[Merge]:
    """Merges from JSON."""
    return _MERGES.validate_python(list(raw))


def dump_clusters(found: ClusterResult) -> Json:
    """Clusters as JSON: places only."""
    dumped: Json = _CLUSTERS.dump_python(found, mode="json")
    return dumped


def load_clusters(raw: Json) -> ClusterResult:
    """Clusters from JSON."""
    return _CLUSTERS.validate_python(raw)


def pack(vec: Vector | None) -> str | None:
    """A vector as base64 of its 32-bit numbers, little-endian."""
    return None if vec is None else base64.b64encode(np.asarray(vec, dtype="<f4").tobytes()).decode()


def unpack(packed: str | None) -> Vector | None:
    """The vector of a packed one."""
    return None if packed is None else np.frombuffer(base64.b64decode(packed), dtype="<f4").astype(np.float32)
