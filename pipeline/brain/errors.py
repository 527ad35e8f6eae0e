"""Every refusal of the knowledge base as a type, so that callers match types and never messages.

All of them say that the same call can never succeed; what may succeed later is a `TransientError` as everywhere else.
"""

from __future__ import annotations

from isotherm.pipeline.errors import NotFoundError, RejectedError


class BrainError(RejectedError):
    """Root of the refusals of the knowledge base."""


class InvalidError(BrainError):
    """An argument makes no sense by itself."""


class QueryRequiredError(InvalidError):
    """A search without anything to look for."""


class ObjectIdRequiredError(InvalidError):
    """An id is needed, and was nil or none."""


class LinkArgsError(InvalidError):
    """An edge needs two ends and a label."""


class LinkQueryRequiredError(InvalidError):
    """A search of edges needs a label and something to look for."""


class RecipeNameRequiredError(InvalidError):
    """A recipe of an expand needs a name."""


class FilterError(InvalidError):
    """A filter that can match nothing: an unknown kind or property, or a value of another type."""


class SoftDeletedPutError(InvalidError):
    """An object to put is marked as deleted; `soft_delete` is how that is done."""


class KindError(BrainError):
    """A kind is described wrongly, or an object does not fit the description of its kind."""


class UnknownKindError(KindError, NotFoundError):
    """No such kind is registered."""


class CatalogFrozenError(KindError):
    """Kinds are in use by searches of this process and cannot change any more."""


class ObjectNotFoundError(BrainError, NotFoundError):
    """The namespace has no such live object."""


class LinkNotFirstClassError(BrainError):
    """An end of an edge is a part; edges hold between whole objects."""


class LinkNotFoundError(BrainError, NotFoundError):
    """The namespace has no such live edge."""


class RevisionConflictError(BrainError):
    """The object has another revision than the caller saw."""


class ResultSetError(BrainError):
    """Paging went wrong."""


class ResultSetRequiredError(ResultSetError):
    """A next page needs a `SearchContext` that kept the first one."""


class ResultSetIdRequiredError(ResultSetError):
    """A next page needs the cursor of the one before."""


class ResultSetNotFoundError(ResultSetError, NotFoundError):
    """The results of that search are not kept any more, or never were."""


class RecipeNotFoundError(BrainError, NotFoundError):
    """No expand recipe of that name is registered."""


class UnsupportedError(BrainError):
    """This engine was made without what the call needs."""


class WritesUnsupportedError(UnsupportedError):
    """The store of this engine can only be read."""


class GraphRequiredError(UnsupportedError):
    """Edges are to be followed, and there is no graph."""


class GraphWriterRequiredError(UnsupportedError):
    """An edge is to be written, and there is no graph."""


class ObjectSearchUnavailableError(UnsupportedError):
    """Whole objects are to be searched, and there is no graph that holds them."""


class EdgeSearchUnavailableError(UnsupportedError):
    """Edges are to be searched, and there is no graph that holds them."""


class RerankError(BrainError):
    """A reranker answered with something else than the objects it was given."""
