"""Lines that were refused when they came in: whose they are, so that an erasure finds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from isotherm.pipeline.tier.erasure import ErasureScope, Level
from isotherm.pipeline.transcript import DEFAULT_AGENT


def concerns(scope: ErasureScope, kept: Mapping[str, Any]) -> bool:
    """Whether a line is of what is to be forgotten.

    A line that is no JSON object concerns a scope whose narrowest name it holds in quotes, or whose agent or tenant was named
    for it; one that names nobody concerns nobody.

    Args: kept: `raw`, the line; `agent` and `tenant`, names that were given for lines without any.
    """
    raw = str(kept.get("raw") or "")
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        line = None
    return _is_of(scope, _owner(line, kept)) if isinstance(line, dict) else _mentions(scope, raw, kept)


def _owner(line: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, str | None]:
    names = {name: _name(line.get(name)) for name in ("tenant", "agent", "session", "scope", "run", "id")}
    agent = names["agent"] or DEFAULT_AGENT
    given = _name(kept.get("agent"))
    return {
        **names,
        "agent": given if given and agent == DEFAULT_AGENT else agent,
        "tenant": names["tenant"] or _name(kept.get("tenant")),
        "scope": names["scope"] or "session",
    }


def _name(value: object) -> str | None:
    return None if value is None else str(value).strip()


def _is_of(scope: ErasureScope, owner: Mapping[str, str | None]) -> bool:
    mine = owner["tenant"] == scope.tenant and scope.agent in (None, owner["agent"])
    if not mine or scope.level in {Level.TENANT, Level.AGENT}:
        return mine
    if scope.level is Level.SESSION:
        return owner["session"] == scope.session
    one = scope.namespace
    if one is None or (owner["session"], owner["scope"], owner["run"]) != (one.session, one.scope, one.run):
        return False
    return scope.level is Level.NAMESPACE or owner["id"] in scope.ids


def _mentions(scope: ErasureScope, raw: str, kept: Mapping[str, Any]) -> bool:
    if scope.level is Level.TENANT and _name(kept.get("tenant")) == scope.tenant:
        return True
    given = _name(kept.get("tenant")), _name(kept.get("agent"))
    if scope.level is Level.AGENT and given == (scope.tenant, scope.agent):
        return True
    return any(
        json.dumps(name, ensure_ascii=ascii_only) in raw for name in _narrowest(scope) for ascii_only in (True, False)
    )


def _narrowest(scope: ErasureScope) -> tuple[str, ...]:
    if scope.ids:
        return scope.ids
    inner = (scope.namespace.run, scope.namespace.session) if scope.namespace else (scope.session,)
    return next(((name,) for name in (*inner, scope.agent, scope.tenant) if name is not None), ())
