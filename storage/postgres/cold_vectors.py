"""Vectors of cold records: their signs stay in an index of their own, one bit for each number.

A vector is turned by a fixed rotation first, which leaves all cosines as they are and spreads what a vector says evenly over
its numbers; then their signs alone say well what it is near to. The query keeps sixteen steps for each of its numbers, and
the sum of those where the sign is plus, less the others, is in proportion to the cosine. A vector that this installation's
model made comes back by being embedded again; any other is kept in half precision, out of the index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotherm.storage.postgres.pool import Connection

# Bits of each number of a query: with four the error is far below what the missing lengths of the numbers cost.
PLANES = 4
# Of a vector with evenly spread numbers, the mean cosine with its own signs.
_OWN = math.sqrt(2 / math.pi)
# Stored signs mean nothing under another rotation: neither of these may change.
_ROTATION_SEED = 20_260_701

_FULL = """
SELECT record_key, vector FROM tier_vectors WHERE record_key = ANY(%s) AND vector IS NOT NULL ORDER BY record_key"""

_SHRINK = """
UPDATE tier_vectors AS v SET bits = g.bits::varbit, vector = NULL,
    kept = CASE WHEN v.model IS DISTINCT FROM %(model)s::text THEN v.vector END
FROM unnest(%(keys)s::bigint[], %(bits)s::text[]) AS g (key, bits) WHERE v.record_key = g.key"""

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
    rows = conn.execute(_FULL, (list(keys),)).fetchall()
    signs = [signs_of(np.asarray([vector.to_numpy()], dtype=np.float32))[0] for _, vector in rows]
    conn.execute(_SHRINK, {"keys": [key for key, _ in rows], "bits": signs, "model": model})


def regrow(conn: Connection, keys: Sequence[int], *, embeds: bool) -> list[int]:
    """Give records that came back their vectors; returns those whose text is to be embedded again, found by signs until then.

    Args: embeds: whether there is a model.
    """
    conn.execute(_REGROW, (list(keys),))
    return sorted(int(row[0]) for row in conn.execute(_WANTED, (list(keys),)).fetchall()) if embeds else []


def signs_of(vectors: NDArray[np.float32]) -> list[str]:
    """The signs of vectors' numbers after the rotation, as the server reads bits.

    Args: vectors: shape (n, dimension), n may be 0.
    """
    return [_bits(row) for row in vectors @ _rotation(vectors.shape[1]).T > 0]


def cosine_by_signs(dimension: int) -> str:
    """SQL of the cosine of a query with the vector of `tier_vectors AS v`, from its signs; parameters are `sign_values`."""
    planes = [f"{2**n} * bit_count(v.bits & %(near_plane{n})s::bit({dimension}))" for n in range(PLANES)]
    return _SIGNS.format(sum=" + ".join(planes))


def sign_values(vector: NDArray[np.float32]) -> dict[str, Any]:
    """Parameters that stand for a query where only signs are stored.

    Args: vector: shape (dimension,), of unit length.
    """
    turned = _rotation(len(vector)) @ vector
    low = float(turned.min())
    step = (float(turned.max()) - low) / (2**PLANES - 1) or 1.0
    steps = np.rint((turned - low) / step).astype(np.uint8)
    return {
        "near_bits": _bits(turned > 0),
        "near_low": low,
        "near_step": step,
        "near_total": low * len(turned) + step * int(steps.sum()),
        "near_factor": 1 / (_OWN * math.sqrt(len(turned))),
        **{f"near_plane{n}": _bits((steps >> n) & 1 == 1) for n in range(PLANES)},
    }


@lru_cache(maxsize=4)
def _rotation(dimension: int) -> NDArray[np.float32]:
    """An orthogonal matrix, shape (dimension, dimension), the same on every machine and in every version."""
    # The legacy generator: its streams are frozen for good, those of the newer ones are not.
    drawn = np.random.RandomState(_ROTATION_SEED).standard_normal((dimension, dimension))
    turned, upper = np.linalg.qr(drawn)
    return np.asarray(turned * np.sign(np.diag(upper)), dtype=np.float32)


def _bits(flags: NDArray[np.bool_]) -> str:
    packed = int.from_bytes(np.packbits(flags).tobytes(), "big") >> (-len(flags) % 8)
    return f"{packed:0{len(flags)}b}"
