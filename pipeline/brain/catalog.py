"""The kinds that a process knows: while it knows none, everything is allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from isotherm.pipeline.brain.errors import CatalogFrozenError, KindError
from isotherm.pipeline.brain.kinds import KindSpec, normalized, rfc3339
from isotherm.pipeline.brain.objects import NewObject


class KindStore(Protocol):
    """Keeps kinds, so that another process can load them."""

    def kinds(self) -> list[KindSpec]:
        """All kinds, by name."""
        ...

    def put_kinds(self, specs: Iterable[KindSpec], *, retire_others: bool) -> None:
        """Write kinds in one transaction; with `retire_others` the ones that are not given are taken out."""
        ...


class KindCatalog:
    """Kinds by name, safe to be used by threads; frozen for good once a search has relied on them."""

    def __init__(self) -> None:
        self._kinds: dict[str, KindSpec] = {}
        self._frozen = False
        self._lock = threading.Lock()

    @property
    def empty(self) -> bool:
        """Whether no kind is known, and so every one is allowed."""
        return not self._kinds

    @property
    def frozen(self) -> bool:
        """Whether it can no longer change."""
        return self._frozen

    def get(self, kind: str) -> KindSpec | None:
        """The kind of that name."""
        return self._kinds.get(kind)

    def names(self) -> list[str]:
        """Names, sorted."""
        return list(self._kinds)

    def all(self) -> list[KindSpec]:
        """Kinds by name, sorted."""
        return list(self._kinds.values())

    def freeze(self) -> None:
        """Allow no further change."""
        with self._lock:
            self._frozen = True

    def register(self, specs: Iterable[KindSpec]) -> None:
        """Add kinds; one of a known name replaces it.

        Raises: KindError for a bad description, CatalogFrozenError; nothing is registered then.
        """
        added = normalized(specs)
        with self._lock:
            self._check_open()
            self._kinds = dict(sorted({**self._kinds, **added}.items()))

    def replace(self, specs: Iterable[KindSpec], store: KindStore | None = None) -> None:
        """Know exactly these kinds from now on, here and in the store; none of them means that all are allowed.

        Raises: as `register`, and what the store raises; nothing has changed here then.
        """
        wanted = normalized(specs)
        with self._lock:
            self._check_open()
            if store is not None:
                store.put_kinds(wanted.values(), retire_others=True)
            self._kinds = wanted

    def validate(self, new: NewObject) -> NewObject:
        """Check an object against its kind; values of datetime fields come back in their one spelling.

        Raises: KindError naming the first thing that is wrong, in order of the properties' names.
        """
        if self.empty:
            return new
        spec = self.get(new.kind.strip())
        if spec is None:
            raise KindError(f"kind {new.kind.strip()} is not registered")
        _check_place(spec, new)
        missing = [each.name for each in spec.fields if each.required and new.properties.get(each.name) is None]
        if missing:
            raise KindError(f"kind {spec.kind}: required property {missing[0]} is missing")
        return replace(new, properties=_checked(spec, new.properties))

    def _check_open(self) -> None:
        if self._frozen:
            raise CatalogFrozenError("kinds cannot change any more: a search of this process has used them")


def plain_times(new: NewObject) -> NewObject:
    """The object with its moments as RFC 3339, since JSON has none; those without a zone stay, and are refused later."""
    given: object = new.properties
    if not isinstance(given, Mapping) or not any(isinstance(value, datetime) for value in given.values()):
        return new
    return replace(new, properties={name: _plain(value) for name, value in given.items()})


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value, or a moment
    return rfc3339(value) if isinstance(value, datetime) and value.utcoffset() is not None else value


def _check_place(spec: KindSpec, new: NewObject) -> None:
    if spec.is_parent and not spec.is_part and new.parent_id is not None:
        raise KindError(f"kind {spec.kind} must not have parent_id")
    if spec.is_part and not spec.is_parent and new.parent_id is None:
        raise KindError(f"kind {spec.kind} requires parent_id")


def _checked(spec: KindSpec, properties: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in sorted(properties.items()):
        if value is None:
            continue
        field = spec.field(name)
        if field is None:
            raise KindError(f"kind {spec.kind}: property {name!r} is not defined")
        found[name] = field.stored(value)
    return found
