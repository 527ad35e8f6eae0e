"""A model server that takes a fixed time for every answer, finds the same things in every session, and counts its calls."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DIMENSION = 384
_THING = re.compile(r"thing(\d+) variant(\d+)")
_TURN = re.compile(r"^(\d+) user: .*?(thing\d+ variant\d+)", re.MULTILINE)

Json = dict[str, Any]


class StubModel:
    """Answers after `seconds`: what a window names is found in it, nothing is merged, and what is stored is kept.

    `most` is how many questions it had at a time. It answers `places` requests at a time, others wait. Variants of a thing are alike (cosine 0.7), things are not.
    """

    def __init__(self, seconds: float, places: int = 1_000) -> None:
        self.seconds = seconds
        self.places = threading.Semaphore(places)
        self.url = ""
        self.calls: Counter[str] = Counter()
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    @contextmanager
    def counted(self, path: str) -> Iterator[None]:
        """A request, from its arrival to its answer; of these, questions count."""
        one = int(not path.endswith("/embeddings"))
        with self._lock:
            self._now += one
            self.most = max(self.most, self._now)
        try:
            yield
        finally:
            with self._lock:
                self._now -= one

    def answer(self, path: str, asked: Json) -> str:
        """What the server says to one request, as JSON."""
        if path.endswith("/embeddings"):
            kind, said = "embeddings", self._embeddings(asked)
        else:
            kind, text = self._chat(str(asked["messages"]))
            message = {"role": "assistant", "content": text}
            usage = {"prompt_tokens": 100, "completion_tokens": 20}
            said = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})
        with self._lock:
            self.calls[kind] += 1
        return said

    def _chat(self, shown: str) -> tuple[str, str]:
        if "List what the user" in shown:
            return "extract", json.dumps({"items": [_item(turn, name) for turn, name in _TURN.findall(_lines(shown))]})
        if "Say which of these items" in shown:
            return "merge", json.dumps({"merges": []})
        handles = re.findall(r"handle[\\\": ]+(n\d+)", shown)
        return "adjudicate", json.dumps({"decisions": [{"point": h, "action": "keep"} for h in handles]})

    def _embeddings(self, asked: Json) -> str:
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        data = ",".join(f'{{"index":{n},"embedding":{_written(text)}}}' for n, text in enumerate(texts))
        return f'{{"data":[{data}],"usage":{{"prompt_tokens":{5 * len(texts)}}}}}'


def _lines(shown: str) -> str:
    return shown.replace("\\\\n", "\n").replace("\\n", "\n")


def _item(turn: str, name: str) -> Json:
    return {
        "topic": name,
        "reason": f"about {name}",
        "confidence": 0.9,
        "first_turn": int(turn),
        "last_turn": int(turn),
    }


def _written(text: str) -> str:
    """The direction of the thing that a text names, turned by its variant, as JSON."""
    found = _THING.search(text)
    thing, variant = (int(found.group(1)), int(found.group(2))) if found else (0, len(text))
    made = ["0.0"] * DIMENSION
    made[thing % 100] = "0.837"
    made[100 + (31 * thing + variant) % 280] = "0.547"
    return f"[{','.join(made)}]"


@contextmanager
def stub_model(seconds: float, places: int = 1_000) -> Iterator[StubModel]:
    """The server, on this machine, for as long as the context lasts."""
    stub = StubModel(seconds, places)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        # Headers and body leave as one: in two, the second would wait for the acknowledgment of the first, 40 ms.
        wbufsize = 1 << 20
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            with stub.counted(self.path), stub.places:
                begun = time.monotonic()
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                raw = stub.answer(self.path, asked).encode()
                time.sleep(max(0.0, begun + stub.seconds - time.monotonic()))
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
            self.wfile.flush()

        def log_message(self, *_: object) -> None:
            """The output is the bench's."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
