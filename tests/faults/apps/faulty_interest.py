"""The faulty app, with faults in each stage of interests.

`gate-<stage>`: stand still when a stage's effects are written and not committed yet. `die-<operation>-<place>`: be killed
there, once; `kill-<operation>-<place>`: each time. Places: `before-<stage>` and `after-<stage>` its commit, `answered-<question>` by a model and `stored-<question>`.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from faulty import _first, _gate, _is_set, app
from structlog.contextvars import get_contextvars

from isotherm.storage.interest_copies import RememberingChat
from isotherm.storage.models.chat import HttpChatModel
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.tasks import interest, interest_decide

__all__ = ["app"]

_settle = ClaimedStep.settle
_go_on = interest.go_on
_answered = HttpChatModel.ask
_stored = RememberingChat.ask
_settled: list[str] = []


def _die(place: str) -> None:
    name = f"{get_contextvars().get('operation_id')}-{place}"
    if _is_set(f"kill-{name}") or (_is_set(f"die-{name}") and _first(f"died-{name}")):
        os.kill(os.getpid(), signal.SIGKILL)


def _gated_settle(self: ClaimedStep, conn: Any, receipt: dict[str, Any], *, is_result: bool = False) -> None:
    _settle(self, conn, receipt, is_result=is_result)
    _settled[:] = [self.stage]
    if _is_set(f"gate-{self.stage}"):
        _gate()
    _die(f"before-{self.stage}")


def _faulty_go_on(step: Any, messages: Any) -> None:
    """What comes after the commit of a stage that has followers; the relay lets their messages out instead."""
    _die(f"after-{_settled[0]}")
    _go_on(step, messages)


def _faulty_answered(self: HttpChatModel, question: Any) -> Any:
    said = _answered(self, question)
    _die(f"answered-{question.name}")
    return said


def _faulty_stored(self: RememberingChat, question: Any) -> Any:
    said = _stored(self, question)
    _die(f"stored-{question.name}")
    return said


ClaimedStep.settle = _gated_settle  # type: ignore[method-assign]
interest.go_on = _faulty_go_on
interest_decide.go_on = _faulty_go_on
HttpChatModel.ask = _faulty_answered  # type: ignore[method-assign]
RememberingChat.ask = _faulty_stored  # type: ignore[method-assign]
