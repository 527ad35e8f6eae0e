"""Who a memory belongs to. A namespace is five columns; its key is a hash of them, so no two namespaces share one."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from isotherm.pipeline.clean import aware, clean_name
from isotherm.pipeline.hashing import digest

MESSAGE_ID_CHARS = 32


@dataclass(frozen=True, slots=True)
class Bank:
    """All that one agent of one tenant remembers, over all its sessions."""

    tenant: str | None
    agent: str

    def check(self) -> None:
        """Raise RejectedError naming the part that is blank, too long or has control characters."""
        clean_name(self.agent, field="agent")
        _optional(self.tenant, "tenant")

    @property
    def key(self) -> bytes:
        """32 bytes, different for different banks."""
        return digest("bank", self.tenant, self.agent)


@dataclass(frozen=True, slots=True)
class Namespace:
    """One memory of an agent; build it with `of`, which checks each part.

    Args: agent: whose memory it is; session, run: narrower owners, None when there is none; scope: what kind of memory
        (conversation, session, long_term, audit, or a name of the caller's); tenant: the customer, never merged into
        another part.
    """

    agent: str
    session: str | None = None
    scope: str = "session"
    run: str | None = None
    tenant: str | None = None

    @classmethod
    def of(
        cls,
        agent: str,
        session: str | None = None,
        scope: str = "session",
        *,
        run: str | None = None,
        tenant: str | None = None,
    ) -> Self:
        """Check every part. Raises RejectedError naming the part that is blank, too long or has control characters."""
        return cls(
            agent=clean_name(agent, field="agent"),
            session=_optional(session, "session"),
            scope=clean_name(scope, field="scope"),
            run=_optional(run, "run"),
            tenant=_optional(tenant, "tenant"),
        )

    def check(self) -> None:
        """As `of` does, for a namespace that was built in another way. Raises RejectedError."""
        type(self).of(self.agent, self.session, self.scope, run=self.run, tenant=self.tenant)

    @property
    def bank(self) -> Bank:
        """The bank this namespace is a part of."""
        return Bank(self.tenant, self.agent)

    @property
    def key(self) -> bytes:
        """32 bytes, different for different namespaces."""
        return digest("namespace", self.tenant, self.scope, self.agent, self.session, self.run)

    @property
    def label(self) -> str:
        """`scope:session:run:agent` for people to read; two namespaces may share a label, so it is never a key."""
        return ":".join((self.scope, self.session or "", self.run or "", self.agent))

    def for_tenant(self, tenant: str) -> Self:
        """Return the same namespace of another tenant; twice is the same as once.

        Raises: RejectedError when the tenant is blank, since a missing tenant must not mean "no tenant".
        """
        return replace(self, tenant=clean_name(tenant, field="tenant"))


def message_id(namespace: Namespace, time: datetime, role: str, content: str, position: int) -> str:
    """Derive the id of a chat message, so that seeding a transcript twice stores it once.

    Args: time: aware, any zone: equal instants give equal ids; position: index of the message in its transcript.
    Returns: 32 hexadecimal characters.
    Raises: RejectedError when time is naive.
    """
    instant = aware(time, "time").isoformat(timespec="microseconds")
    return digest("message", namespace.key, instant, role, content, str(position)).hex()[:MESSAGE_ID_CHARS]


def check_names(**names: str | None) -> None:
    """Check names that narrow a list, each by its parameter; None narrows nothing, and a blank one must not mean the same.

    Raises: RejectedError.
    """
    for field, name in names.items():
        _optional(name, field)


def _optional(name: str | None, field: str) -> str | None:
    return None if name is None else clean_name(name, field=field)
