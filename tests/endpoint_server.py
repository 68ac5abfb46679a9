"""A server process that speaks the OpenAI chat protocol with audio, and can misbehave in every way that servers do.

Run: python endpoint_server.py [--faults SHARE] [--slow SECONDS]; prints its port. Replies with the CRC-32 of the audio
it was sent, so that each reply says which clip it belongs to.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-secret-0123456789"
FAULTS = ("429", "429 and wait", "500", "503", "hang up", "break off", "malformed", "no finish", "empty")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults, slow = 0.0, 0.0
    rng = random.Random(0)
    lock = threading.Lock()
    seen: list[int] = []  # noqa: RUF012 - shared by all requests on purpose
    in_flight = most_in_flight = 0

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        """Tell how many requests came, and how many at once."""
        self._json(200, {"requests": len(self.seen), "most_in_flight": Handler.most_in_flight})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            Handler.in_flight += 1
            Handler.most_in_flight = max(Handler.most_in_flight, Handler.in_flight)
            fault = self.rng.choice(FAULTS) if self.rng.random() < self.faults else None
        try:
            self._answer(request, fault)
        finally:
            with self.lock:
                Handler.in_flight -= 1

    def _answer(self, request: dict[str, Any], fault: str | None) -> None:
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self._json(401, {"error": {"message": f"Incorrect API key: {self.headers.get('Authorization')}"}})
        elif request["model"] != "tiny":
            self._json(404, {"error": {"message": f"no model {request['model']}"}})
        elif "too long" in request["messages"][0]["content"][-1]["text"]:
            self._json(400, {"error": {"message": "the prompt is too long"}})
        elif fault in ("429", "429 and wait"):
            self._json(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.02"} if "wait" in fault else {})
        elif fault in ("500", "503"):
            self._json(int(fault), {"error": {"message": "no"}})
        elif fault == "hang up":
            self.close_connection = True
        else:
            self._stream(request, fault)

    def _stream(self, request: dict[str, Any], fault: str | None) -> None:
        parts = request["messages"][0]["content"]
        heard = [base64.b64decode(part["input_audio"]["data"]) for part in parts if part["type"] == "input_audio"]
        assert all(data[:4] == b"RIFF" for data in heard)
        text = f"{zlib.crc32(b''.join(heard)):08x}"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if fault == "empty":
            return
        if fault == "malformed":
            self.wfile.write(b"data: {this is no json\n\n")
            return
        for place, piece in enumerate((text[:4], text[4:])):
            time.sleep(self.slow)
            self._event({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
            if fault == "break off" and place == 0:
                return
        if fault == "no finish":
            return
        with self.lock:
            self.seen.append(1)
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 100, "completion_tokens": 8, "prompt_tokens_details": {"audio_tokens": 25}}
        self._event({"choices": [], "usage": usage | {"total_tokens": 108}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, content: dict[str, Any]) -> None:
        whole = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "tiny", **content}
        self.wfile.write(f"data: {json.dumps(whole)}\n\n".encode())
        self.wfile.flush()

    def _json(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=float, default=0.0)
    parser.add_argument("--slow", type=float, default=0.0)
    given = parser.parse_args()
    Handler.faults, Handler.slow = given.faults, given.slow
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()
