"""Requests to OpenAI-compatible servers: short waits for what passes, errors by remedy for the rest.

Messages name the endpoint and the status, never what was sent or answered, and nothing here is logged.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import SecretStr
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError
from isotherm.storage.models.per_process import PerProcess

Body = dict[str, Any]

_PASSING = frozenset({408, 409, 425, 429})
_FIRST_SERVER_ERROR = 500
_OK = range(200, 300)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a call is tried here before it goes back to its step.

    Args: attempts: requests at most; first_wait, longest_wait: seconds; waits double between them, with jitter. A
        server that asks for a longer wait than `longest_wait` is not asked again here; total: seconds after which no
        further request is sent, so that a call and its repair, time-outs included, end within a task's time limit.
    """

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 20.0
    total: float = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A JSON object that a server answered, and the requests and milliseconds it took."""

    body: Body
    attempts: int
    duration_ms: int


class StatusRejectedError(RejectedError):
    """The server refused the request. Args: endpoint: path; status: of HTTP."""

    def __init__(self, endpoint: str, status: int) -> None:
        super().__init__(f"{endpoint}: the model server answered {status}")
        self.status = status


class _PassingError(TransientError):
    """A failure that may pass; `wait` is what the server asked for, in seconds."""

    def __init__(self, message: str, wait: float | None) -> None:
        super().__init__(message)
        self.wait = wait


class ModelServer:
    """A server that speaks OpenAI's protocol. It may be shared by threads, and survives a fork.

    Args: base_url: up to and with the version, such as `http://127.0.0.1:8000/v1`; api_key: sent as bearer token;
        timeout: seconds without a sign from the server; sleep: waits, for tests.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: SecretStr | None = None,
        timeout: float = 120.0,
        patience: Patience | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._timeout = timeout
        self._patience = patience or Patience()
        self._sleep = sleep
        self._client = PerProcess(self._open)

    def post(self, endpoint: str, body: Body) -> Reply:
        """Send a request until it is answered, at most `patience.attempts` times.

        Raises: UnavailableError when the server cannot be reached; TransientError for time-outs, rate limits and its
            own errors; StatusRejectedError for other refusals; RejectedError for what is no JSON object.
        """
        started = time.monotonic()
        retrying = Retrying(
            retry=retry_if_exception_type(TransientError),
            stop=self._gives_up,
            wait=self._wait,
            sleep=self._sleep,
            reraise=True,
        )
        answered = retrying(self._once, endpoint, body)
        attempts = int(retrying.statistics.get("attempt_number", 1))
        return Reply(answered, attempts, round((time.monotonic() - started) * 1000))

    def close(self) -> None:
        """Close the connections of this process; the next request opens new ones."""
        client = self._client.forget()
        if client is not None:
            client.close()

    def _open(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self._api_key.get_secret_value()}"} if self._api_key else {}
        return httpx.Client(headers=headers, timeout=self._timeout)

    def _once(self, endpoint: str, body: Body) -> Body:
        try:
            response = self._client.get().post(f"{self._base_url}/{endpoint}", json=body)
        except httpx.TimeoutException as error:
            raise TransientError(f"{endpoint}: the model server did not answer within {self._timeout:g} s") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise RejectedError(f"{endpoint}: the model server's base URL or API key is not usable") from error
        except httpx.RequestError as error:
            raise UnavailableError(f"{endpoint}: no connection to the model server ({type(error).__name__})") from error
        _check_status(endpoint, response.status_code, _asked_wait(response))
        return _json_object(endpoint, response)

    def _gives_up(self, state: RetryCallState) -> bool:
        asked = _wait_of(state)
        too_long = asked is not None and asked > self._patience.longest_wait
        limits = stop_after_attempt(self._patience.attempts) | stop_after_delay(self._patience.total)
        return too_long or bool(limits(state))

    def _wait(self, state: RetryCallState) -> float:
        own = wait_random_exponential(self._patience.first_wait, self._patience.longest_wait)(state)
        return max(own, _wait_of(state) or 0.0)


def _wait_of(state: RetryCallState) -> float | None:
    error = state.outcome.exception() if state.outcome else None
    return error.wait if isinstance(error, _PassingError) else None


def _check_status(endpoint: str, status: int, wait: float | None) -> None:
    if status in _PASSING or status >= _FIRST_SERVER_ERROR:
        raise _PassingError(f"{endpoint}: the model server answered {status}", wait)
    if status not in _OK:
        raise StatusRejectedError(endpoint, status)


def _asked_wait(response: httpx.Response) -> float | None:
    """Read Retry-After, seconds or a date; None when it is absent or unreadable."""
    raw = response.headers.get("Retry-After", "")
    try:
        return max(float(raw), 0.0)
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(raw)
    except ValueError:
        return None
    aware = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max((aware - datetime.now(UTC)).total_seconds(), 0.0)


def _json_object(endpoint: str, response: httpx.Response) -> Body:
    try:
        body = response.json()
    except ValueError:
        if response.content.lstrip().startswith(b"{"):  # the rest was lost on its way; what never was JSON stays so
            raise _PassingError(f"{endpoint}: the model server's answer broke off", None) from None
        body = None
    if not isinstance(body, dict):
        raise RejectedError(f"{endpoint}: the model server answered something else than a JSON object")
    if isinstance(body.get("error"), dict):  # some routers answer 200 and put the status of the failure inside
        code = body["error"].get("code")
        _check_status(endpoint, code if isinstance(code, int) else 400, None)
    return body
