"""Errors by remedy: what the caller may do next decides the type."""


class IsothermError(Exception):
    """Root of every error raised on purpose. Messages carry ids, names and counts, never stored text."""


class TransientError(IsothermError):
    """The same call may succeed later: a lost connection, a busy lock, a rate limit. It never counts as an attempt."""


class RejectedError(IsothermError):
    """The same call can never succeed: invalid input, an unknown record, a key that was used with another body."""


class NotFoundError(RejectedError):
    """There is no such record in this namespace."""


class OutOfReachError(RejectedError):
    """Row-level security refused a write: its rows belong to another owner than the call, or to one that was erased."""


class VersionConflictError(RejectedError):
    """The record has another version than the caller saw; reading it again shows what to do.

    Args: version: the one it has.
    """

    def __init__(self, version: int, expected: int) -> None:
        super().__init__(f"the record has version {version}, not {expected}")
        self.version = version


class BudgetSpentError(RejectedError):
    """A run has spent what it may on models: nothing more is asked for it until somebody gives it a larger budget."""


class UnavailableError(TransientError):
    """A server this call needs cannot be reached or does not fit (too old, missing extension); the message says which."""


class ErasedError(TransientError):
    """The namespace of a write was erased between the look at its name and the write; the same call makes it anew."""


class RacedError(TransientError):
    """Another writer came between, and this write was rolled back whole; the same call may be made again at once."""


class DeadlockError(RacedError):
    """Two transactions waited for each other, and this one was ended."""


class LostLeaseError(IsothermError):
    """Another runner owns the step now; what this runner did is rolled back."""


class NotReadyError(IsothermError):
    """The step is owned by a live runner, not due yet, or waits for other steps; its message may be dropped."""


class AlreadyDoneError(IsothermError):
    """The step was finished before; `receipt` is what the first delivery answered.

    Args: step_id: the step; state: its final state; receipt: the stored receipt, or None when it did not succeed.
    """

    def __init__(self, step_id: int, state: str, receipt: dict[str, object] | None) -> None:
        super().__init__(f"step {step_id} is already {state}")
        self.state = state
        self.receipt = receipt
