"""A server process that speaks the OpenAI chat protocol with audio, and can misbehave like real servers.

Run: python endpoint_server.py. It prints its port. `GET /set?slow=SECONDS` changes how it behaves (`Server` has all
settings). `GET /new?faults=SHARE` opens another server in the same process and returns its port.
A reply is the CRC-32 of the audio in the request, so that it identifies the clip. Some questions get another reply:
a key of `WISHES` gets its stream, a status with a message (`400 too long`) that error, `wait 3` a request to wait, and
`echo` the request itself.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

KEY = "sk-secret+0123/456789="
FAULTS = ("429", "429 and wait", "500", "503", "529")
FAULTS += ("hang up", "break off", "malformed", "no finish", "empty", "abort")
USAGE = {"prompt_tokens": 100, "completion_tokens": 8, "total_tokens": 108}
USAGE |= {"prompt_tokens_details": {"audio_tokens": 25}}
DONE = b"data: [DONE]\n\n"


def event(delta: dict[str, Any] | None = None, finish: Any = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    content = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": choices, **more}
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


def whole(text: Any) -> bytes:
    return event({"content": text}) + event(finish="stop") + DONE


def parts_of(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content parts of the last message of a request."""
    content = request["messages"][-1]["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def nested(part: Any, depth: int) -> Any:
    return [{"type": "text", "text": nested(part, depth - 1)}] if depth else part


def bomb(unit: bytes, count: int) -> bytes:
    """Return `count` copies of a piece, compressed with gzip."""
    packing = zlib.compressobj(1, wbits=31)  # level 1, so that the server starts quickly
    return b"".join([packing.compress(unit * 10_000) for _ in range(count // 10_000)]) + packing.flush()


WISHES = {
    "crlf": whole("Bé").replace(b"\n", b"\r\n"),
    "byte order mark": b"\xef\xbb\xbf" + whole("Bé"),
    "comments": b": ping\n\nevent: x\nid: 3\nretry: 5\n" + whole("Bé") + b": pong\n",
    "no space": whole("Bé").replace(b"data: ", b"data:"),
    "many lines": b'data: {"choices":[{"delta":\ndata: {"content":"B\\u00e9"},"finish_reason":"stop"}]}\n\n' + DONE,
    "message": b'data: {"choices":[{"message":{"content":"B\\u00e9"},"finish_reason":"stop"}]}\n\n' + DONE,
    "parts": whole([{"type": "text", "text": "B"}, {"type": "text", "text": "é"}]),
    "null first": event({"role": "assistant", "content": None}) + whole("Bé"),
    "reasoning": event({"reasoning_content": "A?"}) + whole("Bé"),
    "not done": whole("Bé").removesuffix(DONE),
    "refusal": event({"refusal": "No."}) + event(finish="stop") + DONE,
    "filter": event(finish="content_filter") + DONE,
    "filter later": event({"content": "B"}) + event(finish="content_filter") + DONE,
    "thinking only": event({"content": None, "reasoning_content": "I hear birds."})
    + event({"content": None}, "stop", usage={"completion_tokens": 40})
    + DONE,
    "thinking unclosed": event({"content": "<think>I hear birds."}, "stop") + DONE,
    "thinking alone": event({"content": "<think></think>\n\n"}, "stop", usage={"completion_tokens": 3}) + DONE,
    "thinking unclosed and cut": event({"content": "<think>I hear"}, "length", usage={"completion_tokens": 16}) + DONE,
    "thinking cut": event({"content": None, "reasoning": "I hear"})
    + event({}, "length", usage={"completion_tokens": 16})
    + DONE,
    "thinking in a message": event(choices=[{"message": {"content": "\n", "reasoning": "A?"}, "finish_reason": "stop"}])
    + DONE,
    "thinking in parts": event({"content": [{"type": "thinking", "thinking": "A?"}]}, "stop") + DONE,
    "unsafe": event({"content": ""}, "SAFETY") + DONE,
    "tool call": event({"content": None, "tool_calls": [{"id": "x"}]}, "tool_calls") + DONE,
    "tokens without text": event({"content": ""}, "stop", usage={"completion_tokens": 40}) + DONE,
    "nothing": event(finish="stop") + DONE,
    "odd usage": event({"content": "Bé"}, "stop", usage={"prompt_tokens": float("nan"), "completion_tokens": "7"})
    + DONE,
    "text for choices": event(choices="abc"),
    "null for choices": event(choices=[None]),
    "a number": b"data: 5\n\n",
    "deep": b"data: " + b"[" * 200_000 + b"\n\n",
    "cut event": b'data: {"choices": [{"del\n\n',
    "no choices": event(choices=[]) + DONE,
    "error inside": event({"content": "B"}) + b'data: {"error": {"message": "the engine died"}}\n\n',
    "2 MB": whole("x" * 2_000_000),
    "900,000 characters": whole("x" * 900_000),
    "the key": whole(f"Bearer {KEY}"),
    "a part of the key": whole(f"it ends in {KEY[8:]}"),
    "deep parts": whole(nested("B", 450)),
    "odd finish": event({"content": "B"}, {"why": "stop"}) + DONE,
}
PACKED = {  # the Content-Encoding header and the body
    "gzip": ("gzip", gzip.compress(whole("Bé"))),
    "deflate": ("deflate", zlib.compress(whole("Bé"))),
    "bomb": ("gzip", bomb(b":\n", 500_000)),
    "bomb of events": ("gzip", bomb(b"data:\n\n", 100_000)),
    "bomb in a bomb": ("gzip, gzip", gzip.compress(bomb(b":\n", 500_000), 1)),
    "no gzip": ("gzip", whole("Bé")),
}


OTHERS = {  # other answers: the Content-Type header and the body
    "no stream": ("application/json", b'{"choices": [{"message": {"content": "B"}}]}'),
    "html": ("text/html", b"<html><body>Welcome to our gateway</body></html>"),
    "html as a stream": ("text/event-stream", b"<html>\n<body>Welcome</body></html>"),
    "another protocol": ("text/event-stream", b'event: message_start\ndata: {"type": "message_start"}\n\n'),
    "text in events": ("text/event-stream", b"data: Hello\n\n"),
    "no chat": ("text/event-stream", b'data: {"choices": [{"text": "B", "finish_reason": "stop"}]}\n\n'),
    "a key refused": ("text/event-stream", b'data: {"error": {"message": "no key", "code": 401}}\n\n'),
    "utf-16": ("text/event-stream", whole("B").decode().encode("utf-16")),
    "busy in json": ("application/json", b'{"error": {"message": "slow down", "code": 429}}'),
    "no type": ("", b"\x00\x01"),
}


class Server(ThreadingHTTPServer):
    """A server on a free port: its settings and its counts of requests."""

    daemon_threads = True
    faults = slow = 0.0
    revoke = hang = float("inf")
    keyless = 0.0
    posts = answered = in_flight = most_in_flight = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rng = random.Random(0)
        self.lock = threading.Lock()

    def set(self, query: str) -> None:
        for name, value in parse_qsl(query, strict_parsing=bool(query)):
            assert name in ("faults", "slow", "revoke", "hang", "keyless")
            setattr(self, name, float(value))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server
    in_flight = False

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Return the counts of requests or the list of models, or open a server, or change this server."""
        names = ("posts", "answered", "in_flight", "most_in_flight")
        asked = urlsplit(self.path)
        if asked.path == "/new":
            other = Server()
            other.set(asked.query)
            threading.Thread(target=other.serve_forever, daemon=True).start()
            self._json(200, {"port": other.server_port})
        elif not asked.path.endswith("/models"):
            if asked.path == "/set":
                self.server.set(asked.query)
            self._json(200, {name: getattr(self.server, name) for name in names})
        elif self._known():
            self._json(200, {"object": "list", "data": [{"id": "tiny"}, {"id": "other"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.posts += 1
            self.server.in_flight += 1
            self.in_flight = True
            self.server.most_in_flight = max(self.server.most_in_flight, self.server.in_flight)
            fault = self.server.rng.choice(FAULTS) if self.server.rng.random() < self.server.faults else None
        try:
            with suppress(OSError):  # the client may have disconnected
                self._answer(request, fault)
        finally:
            self._leave()

    def _leave(self) -> None:
        """Count the request as finished before its last bytes leave: their reader may send the next request at once."""
        with self.server.lock:
            self.server.in_flight -= self.in_flight
            self.in_flight = False

    def _known(self) -> bool:
        known = self.headers.get("Authorization") == f"Bearer {KEY}" and self.server.answered < self.server.revoke
        known = known or bool(self.server.keyless)
        if not known:
            self._json(401, {"error": {"message": f"Incorrect API key: {self.headers.get('Authorization')}"}})
        return known

    def _answer(self, request: dict[str, Any], fault: str | None) -> None:
        wish = parts_of(request)[-1]["text"]
        if not self._known():
            return
        if self.server.answered >= self.server.hang:
            time.sleep(120)
        if request["model"] != "tiny":
            self._json(404, {"error": {"message": f"no model {request['model']}"}})
        elif wish.startswith("wait "):
            self._json(429, {"error": {"message": "slow down"}}, {"Retry-After": wish[5:]})
        elif wish[:4].strip().isdigit():
            self._refuse(int(wish[:3]), wish[4:])
        elif fault in ("429", "429 and wait"):
            self._json(429, {"error": {"message": "slow down"}}, {"Retry-After": "0.02"} if "wait" in fault else {})
        elif fault in ("500", "503", "529"):
            self._json(int(fault), {"error": {"message": "no"}})
        elif fault == "hang up" or wish == "hang up":
            self.close_connection = True
        elif wish == "HTTP/1.0":
            self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + whole("Bé"))
            self.close_connection = True
        else:
            self._stream(request, fault, wish)

    def _refuse(self, status: int, what: str) -> None:
        """Refuse with a message; `{key}`, `{quoted}` and `{part}` in it become forms of the key that servers echo."""
        told = str(self.headers.get("Authorization"))
        if status // 100 == 3:
            self._json(status, {}, {"Location": what})
        else:
            every = "".join(f"%{ord(character):02x}" for character in told)
            text = what.format(key=told, quoted=quote(told, safe=""), part=told[7:18], every=every)
            self._json(status, {"error": {"message": text, "code": what}}, {"Retry-After": "0.01"})

    def _stream(self, request: dict[str, Any], fault: str | None, wish: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", OTHERS[wish][0] if wish in OTHERS else "text/event-stream")
        if wish in PACKED:
            self.send_header("Content-Encoding", PACKED[wish][0])
        self.send_header(
            "Transfer-Encoding" if wish == "chunks" else "Connection", "chunked" if wish == "chunks" else "close"
        )
        self.end_headers()
        self.close_connection = True
        for piece in self._pieces(request, fault, wish):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if wish == "chunks" else piece)
        if wish == "chunks":
            self.wfile.write(b"0\r\n\r\n")
        elif wish == "hang after":
            self.wfile.flush()
            time.sleep(60)

    def _pieces(self, request: dict[str, Any], fault: str | None, wish: str) -> Iterator[bytes]:
        if self.server.keyless:
            yield whole(wish)
        elif wish == "echo":
            yield event({"content": json.dumps(request)}, "stop") + event(choices=[], usage=USAGE) + DONE
        elif wish in WISHES:
            yield WISHES[wish]
        elif wish in PACKED or wish in OTHERS:
            yield (PACKED | OTHERS)[wish][1]
        elif wish in ("bytes", "chunks"):
            yield from (bytes([byte]) for byte in whole("Bé"))
        elif wish == "hang after":
            yield whole("Bé").removesuffix(DONE)
        elif wish in ("endless", "endless line", "heartbeats"):
            while True:
                yield {"endless": event({"content": "x" * 1000}), "endless line": b"x" * 65536}.get(wish, b": ping\n\n")
                time.sleep(0.02 if wish == "heartbeats" else 0)
        elif fault == "malformed":
            self._leave()
            yield b"data: {this is no json\n\n"
        elif fault != "empty":
            yield from self._reply(request, fault)

    def _reply(self, request: dict[str, Any], fault: str | None) -> Iterator[bytes]:
        parts = parts_of(request)
        heard = [base64.b64decode(part["input_audio"]["data"]) for part in parts if part["type"] == "input_audio"]
        assert all(data[:4] == b"RIFF" for data in heard)
        text = f"{zlib.crc32(b''.join(heard)):08x}"
        for place, piece in enumerate((text[:4], text[4:])):
            time.sleep(self.server.slow)
            yield event({"content": piece})
            if fault == "break off" and place == 0:
                return
        if fault != "no finish":
            with self.server.lock:
                self.server.answered += fault != "abort"
            self._leave()
            yield event(finish="abort" if fault == "abort" else "stop") + event(choices=[], usage=USAGE) + DONE

    def _json(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        usual = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in (usual | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self._leave()
        self.wfile.write(body)


if __name__ == "__main__":
    server = Server()
    print(server.server_port, flush=True)  # noqa: T201
    server.serve_forever()
