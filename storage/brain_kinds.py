"""The kinds of the engine: known to this process, and stored for others to load."""

from __future__ import annotations

from collections.abc import Iterable

from isotherm.pipeline.brain.catalog import KindCatalog, KindStore
from isotherm.pipeline.brain.errors import KindError, UnknownKindError
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.kinds import KindSpec, SchemaResult, normalized
from isotherm.pipeline.brain.observing import Op, OpObserver, observed
from isotherm.pipeline.brain.write_kinds import WriteKinds
from isotherm.storage.postgres.brain_kinds import PostgresKinds


class Kinds:
    """What an engine knows of kinds. While it knows none, every kind and every property is allowed."""

    observer: OpObserver | None

    def __init__(self) -> None:
        self.catalog = KindCatalog()
        self.write_kinds = WriteKinds()
        self._stored: KindStore = PostgresKinds()

    def register_kinds(self, specs: Iterable[KindSpec]) -> None:
        """Know these kinds too, in this process only. Raises: KindError, CatalogFrozenError."""
        self.catalog.register(specs)

    def apply_kinds(self, specs: Iterable[KindSpec]) -> None:
        """Know exactly these kinds, in the database too; others are retired there.

        Raises: KindError, also for none at all, CatalogFrozenError; nothing has changed anywhere then.
        """
        wanted = list(specs)
        if not wanted:
            raise KindError("no kinds to apply; `allow_all_kinds` is how validation is given up")
        self.catalog.replace(wanted, self._stored)

    def allow_all_kinds(self) -> None:
        """Retire every kind, here and in the database: from now on all are allowed. Raises: CatalogFrozenError."""
        self.catalog.replace([], self._stored)

    def sync_kinds(self) -> None:
        """Write the kinds that this process knows to the database, beside those that are there."""
        persist_kinds(self._stored, self.catalog.all())

    def load_kinds(self) -> None:
        """Know exactly the kinds of the database. Raises: CatalogFrozenError; KindError when one cannot be read."""
        self.catalog.replace(self._stored.kinds())

    def freeze_kinds(self) -> None:
        """Allow no further change in this process, as the first search that relies on kinds does."""
        self.catalog.freeze()

    def schema(self, kind: str = "") -> SchemaResult:
        """Kinds and how to filter by their properties: this process's, else those of the database.

        Args: kind: only this one; blank means all, by name. Raises: UnknownKindError.
        """
        with observed(self.observer, Op.SCHEMA) as outcome:
            known = self.catalog.all() or self._stored.kinds()
            name = kind.strip()
            found = [spec for spec in known if not name or spec.kind == name]
            if name and not found:
                raise UnknownKindError(f"kind {name} is not registered")
            outcome.hits = len(found)
            return SchemaResult(tuple(found))

    def use_write_kinds(self, kinds: WriteKinds) -> None:
        """Say as what agents save things. Raises: UnknownKindError for a kind that is not registered."""
        self.write_kinds = kinds.checked(self.catalog)

    def checked_filters(self, filters: Filters | None) -> Filters:
        """Filters as the catalog has them; it is frozen, since a search relies on it now. Raises: FilterError."""
        given = filters or Filters()
        if self.catalog.empty:
            return given
        self.catalog.freeze()
        return given.against(self.catalog)

    def declared_fields(self, filters: Filters) -> list[str]:
        """Names of the properties that the kinds in question declare."""
        specs = [spec for spec in self.catalog.all() if not filters.kinds or spec.kind in filters.kinds]
        return sorted({each.name for spec in specs for each in spec.fields})


def persist_kinds(store: KindStore, specs: Iterable[KindSpec]) -> None:
    """Write kinds beside those that are stored, all or none. Raises: KindError."""
    store.put_kinds(normalized(specs).values(), retire_others=False)
