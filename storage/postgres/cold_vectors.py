"""Vectors of cold records: their signs stay in an index of their own, one bit for each number.

The signs of a vector say well enough what it is near to: the query keeps sixteen steps for each of its numbers, and the sum
of those where the sign is plus, less the others, is in proportion to the cosine. A vector that this installation's model
made comes back by being embedded again; any other is kept in half precision, out of the index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotherm.storage.postgres.pool import Connection

# Bits of each number of a query: with four the error is far below what the missing lengths of the numbers cost.
PLANES = 4
# Of unit vectors with evenly spread numbers, the mean of their cosine with their own signs, scaled to unit length.
_OWN = math.sqrt(2 / math.pi)

_SHRINK = """
UPDATE tier_vectors SET bits = binary_quantize(vector), vector = NULL,
    kept = CASE WHEN model IS DISTINCT FROM %(model)s::text THEN vector END
WHERE record_key = ANY(%(keys)s) AND vector IS NOT NULL"""

_REGROW = (
    "UPDATE tier_vectors SET vector = kept, kept = NULL, bits = NULL WHERE record_key = ANY(%s) AND kept IS NOT NULL"
)

_WANTED = """
UPDATE tier_records AS r SET vector_state = 'again' FROM tier_vectors AS v
WHERE r.key = ANY(%s) AND v.record_key = r.key AND v.bits IS NOT NULL AND r.vector_state = 'done' RETURNING r.key"""

# The cosine of a row's signs with the query, as a sum over planes: each counts the numbers whose sign is plus and that
# have this bit.
_SIGNS = """(%(near_factor)s * (2 * (%(near_low)s * bit_count(v.bits) + %(near_step)s * ({sum})) - %(near_total)s))"""


def shrink(conn: Connection, keys: Sequence[int], *, model: str | None) -> None:
    """Leave the signs of the vectors of records that go cold.

    Args: model: stamp of the model that can embed again; what another one made is kept in half precision.
    """
    conn.execute(_SHRINK, {"keys": list(keys), "model": model})


def regrow(conn: Connection, keys: Sequence[int], *, embeds: bool) -> list[int]:
    """Give records that came back their vectors; returns those whose text is to be embedded again, found by signs until then.

    Args: embeds: whether there is a model.
    """
    conn.execute(_REGROW, (list(keys),))
    return sorted(int(row[0]) for row in conn.execute(_WANTED, (list(keys),)).fetchall()) if embeds else []


def cosine_by_signs(dimension: int) -> str:
    """SQL of the cosine of a query with the vector of `tier_vectors AS v`, from its signs; parameters are `sign_values`."""
    planes = [f"{2**n} * bit_count(v.bits & %(near_plane{n})s::bit({dimension}))" for n in range(PLANES)]
    return _SIGNS.format(sum=" + ".join(planes))


def sign_values(vector: NDArray[np.float32]) -> dict[str, Any]:
    """Parameters that stand for a query where only signs are stored.

    Args: vector: shape (dimension,), of unit length.
    """
    low = float(vector.min())
    step = (float(vector.max()) - low) / (2**PLANES - 1) or 1.0
    steps = np.rint((vector - low) / step).astype(np.uint8)
    return {
        "near_bits": _bits(vector > 0),
        "near_low": low,
        "near_step": step,
        "near_total": float(low * len(vector) + step * int(steps.sum())),
        "near_factor": 1 / (_OWN * math.sqrt(len(vector))),
        **{f"near_plane{n}": _bits((steps >> n) & 1 == 1) for n in range(PLANES)},
    }


def _bits(flags: NDArray[np.bool_]) -> str:
    return "".join("1" if flag else "0" for flag in flags)
