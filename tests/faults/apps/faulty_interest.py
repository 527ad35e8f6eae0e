"""The faulty app, with a gate in each stage of interests: when its effects are written, and not committed yet."""

from __future__ import annotations

from typing import Any

from faulty import _gate, _is_set, app

from isotherm.storage.postgres.steps import ClaimedStep

__all__ = ["app"]

_settle = ClaimedStep.settle


def _gated_settle(self: ClaimedStep, conn: Any, receipt: dict[str, Any], *, is_result: bool = False) -> None:
    _settle(self, conn, receipt, is_result=is_result)
    if _is_set(f"gate-{self.stage}"):
        _gate()


ClaimedStep.settle = _gated_settle  # type: ignore[method-assign]
