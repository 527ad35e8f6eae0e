"""A model server on this machine that answers by a script and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


@dataclass
class Answer:
    """What the server says to one request; `silent` never answers, `hold` waits before it does, `half` breaks off."""

    body: Json | str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    hold: threading.Event | None = None
    hold_s: float = 20.0
    half: bool = False


@dataclass
class Script:
    """Answers in order, the last one for ever, or those of `reply`; `asked` are the requests, `headers` theirs."""

    answers: list[Answer]
    url: str = ""
    asked: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    reply: Callable[[Json], Answer] | None = None

    def next(self, question: Json) -> Answer:
        if self.reply is not None:
            return self.reply(question)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def said(text: str | None, **choice: Any) -> Answer:
    """A chat completion."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    return Answer({"choices": [{"message": message, "finish_reason": "stop", **choice}], "usage": usage})


def vectors(*items: tuple[int, list[float]]) -> Answer:
    """Embeddings with their indices."""
    return Answer({"data": [{"index": i, "embedding": v} for i, v in items], "usage": {"prompt_tokens": 5}})


@contextmanager
def model_server(*answers: Answer, reply: Callable[[Json], Answer] | None = None) -> Iterator[Script]:
    script = Script(list(answers), reply=reply)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script))
    server.daemon_threads = True
    script.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield script
    finally:
        script.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with lock:
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                script.asked.append(question)
                script.paths.append(self.path)
                script.headers.append(dict(self.headers))
                answer = script.next(question)
            if answer.silent:
                script.ended.wait(10)
                self.close_connection = True
                return
            if answer.hold is not None:
                answer.hold.wait(answer.hold_s)
            raw = (answer.body if isinstance(answer.body, str) else json.dumps(answer.body)).encode()
            self.send_response(answer.status)
            for name, value in {"Content-Length": str(len(raw)), **answer.headers}.items():
                self.send_header(name, value)
            with suppress(ConnectionError):  # of a client that was killed meanwhile
                self.end_headers()
                self.wfile.write(raw[: len(raw) // 2] if answer.half else raw)
                self.close_connection = self.close_connection or answer.half

        def log_message(self, *_: object) -> None:
            """A test's output is not the place for a server's log."""

    return Handler
