"""Render chat templates in a child process (template_child.py), which ends when this process ends."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from audiomarathon.errors import TemplateError

SECONDS = 5.0
"""Longest CPU time for one prompt; published templates take milliseconds."""


class _Child:
    """The child process that renders chat templates.

    It is started at the first request, and again after its end or a fork.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def ask(self, request: dict[str, Any]) -> dict[str, str]:
        """Send a request; return `{"text": …}`, or `{"error": …}` if rendering failed or the process ended."""
        with self._lock:
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                self._process, self._owner = _started(), os.getpid()
            stdin, stdout = self._process.stdin, self._process.stdout
            assert stdin is not None
            assert stdout is not None
            try:
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()
                line = stdout.readline()
            except BrokenPipeError:
                line = ""
            if line:
                answer: dict[str, str] = json.loads(line)
                return answer
            code = self._process.wait()
            self._process = None
        if code == -signal.SIGPROF:
            return {"error": f"it takes more than {request['seconds']:g} s of CPU time"}
        return {"error": f"the process that renders it ended (exit code {code})"}

    def stop(self) -> None:
        """End the child process if this process started it."""
        if self._process is not None and self._owner == os.getpid():
            self._process.communicate()
            self._process = None


def _started() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("template_child.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C must not end the child: this process may still send requests
    )


_CHILD = _Child()
atexit.register(_CHILD.stop)


def render(tokenizer: Any, conversation: list[dict[str, Any]], **options: Any) -> str:
    """Return a conversation as text, made with the tokenizer's chat template, up to the start of the model's turn.

    Raises
    ------
    TemplateError
        The template fails, never ends or takes too much memory; the message names its file.
    """
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several templates, by name
        template = template.get("default")
    if not isinstance(template, str):
        raise TemplateError(f"{template_file(tokenizer)}: the chat template is not text")
    request = {
        "conversations": [conversation],
        "chat_template": template,
        "add_generation_prompt": True,
        **tokenizer.special_tokens_map,
        **options,
        "seconds": SECONDS,
    }
    try:
        return _text(json.dumps(request))
    except TemplateError as error:
        raise TemplateError(f"{template_file(tokenizer)}: the chat template cannot render a prompt: {error}") from None


@functools.lru_cache(maxsize=128)
def _text(request: str) -> str:
    """Return the text for a request to the child process, written as JSON.

    Remember the latest texts: all settings of a sweep ask for the same prompts. Each request waits until the system
    runs the child process, which takes milliseconds on a busy machine.
    """
    answer = _CHILD.ask(json.loads(request))
    if "text" not in answer:
        raise TemplateError(" ".join(answer["error"].split()))
    return answer["text"]


def template_file(tokenizer: Any) -> Path:
    """Return the file that holds a tokenizer's chat template, or the tokenizer's folder if there is no such file."""
    folder = Path(tokenizer.name_or_path)
    names = ("chat_template.json", "chat_template.jinja", "tokenizer_config.json")
    return next((folder / name for name in names if (folder / name).is_file()), folder)
