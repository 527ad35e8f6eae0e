"""What is to be forgotten: records, objects, interests, a namespace, a session, an agent or a tenant; and what a receipt says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from isotherm.pipeline.clean import clean_name
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Bank, Namespace

# What no erasure reaches; every receipt says so.
OUTSIDE = (
    "backups and exports",
    "archived write-ahead logs",
    "log files",
    "lines that were refused on other machines, or name nobody, until their age",
    "words in the memory of running processes until they end",
    "model providers",
)


class Level(StrEnum):
    """How much is forgotten."""

    RECORDS = "records"
    OBJECTS = "objects"
    INTERESTS = "interests"
    NAMESPACE = "namespace"
    SESSION = "session"
    AGENT = "agent"
    TENANT = "tenant"


SINGLE = frozenset({Level.RECORDS, Level.OBJECTS, Level.INTERESTS})


@dataclass(frozen=True, slots=True)
class ErasureScope:
    """Whose memory is forgotten; build it with one of the class methods, which check every name.

    A missing name is never a wildcard: each level names all that it needs.
    """

    level: Level
    tenant: str | None
    agent: str | None = None
    session: str | None = None
    namespace: Namespace | None = None
    ids: tuple[str, ...] = ()

    @classmethod
    def of_records(cls, namespace: Namespace, ids: tuple[str, ...]) -> Self:
        """Records of one namespace. Raises RejectedError for a blank name."""
        namespace.check()
        return cls(Level.RECORDS, namespace.tenant, namespace.agent, namespace.session, namespace, ids)

    @classmethod
    def of_objects(cls, namespace: Namespace, ids: tuple[str, ...]) -> Self:
        """Objects of one knowledge base with their parts. Raises RejectedError for a blank name."""
        namespace.check()
        return cls(Level.OBJECTS, namespace.tenant, namespace.agent, namespace.session, namespace, ids)

    @classmethod
    def of_interests(cls, bank: Bank, ids: tuple[str, ...]) -> Self:
        """Interests of an agent. Raises RejectedError for a blank name."""
        bank.check()
        return cls(Level.INTERESTS, bank.tenant, bank.agent, ids=ids)

    @classmethod
    def of_namespace(cls, namespace: Namespace) -> Self:
        """One namespace and all that is in it. Raises RejectedError for a blank name."""
        namespace.check()
        return cls(Level.NAMESPACE, namespace.tenant, namespace.agent, namespace.session, namespace)

    @classmethod
    def of_session(cls, bank: Bank, session: str) -> Self:
        """A session of an agent, in all its scopes and runs. Raises RejectedError for a blank name."""
        bank.check()
        return cls(Level.SESSION, bank.tenant, bank.agent, clean_name(session, field="session"))

    @classmethod
    def of_agent(cls, bank: Bank) -> Self:
        """All that one agent of a tenant remembers. Raises RejectedError for a blank name."""
        bank.check()
        return cls(Level.AGENT, bank.tenant, bank.agent)

    @classmethod
    def of_tenant(cls, tenant: str) -> Self:
        """All agents of a tenant. Raises RejectedError for a blank name, since a missing tenant must not mean all."""
        return cls(Level.TENANT, clean_name(tenant, field="tenant"))

    @property
    def sha256(self) -> bytes:
        """A hash that tells scopes apart and no names."""
        inner = None if self.namespace is None else self.namespace.key
        return digest("erasure", self.level.value, self.tenant, self.agent, self.session, inner, *sorted(self.ids))

    @property
    def whole_banks(self) -> bool:
        """Whether nothing of the banks stays."""
        return self.level in {Level.AGENT, Level.TENANT}
