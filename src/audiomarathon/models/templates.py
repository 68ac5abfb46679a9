"""Render chat templates in a child process that is started once and ends with this one (template_child.py)."""

from __future__ import annotations

import atexit
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
"""CPU time that a template may take for one prompt; published ones take milliseconds."""


class _Child:
    """The process: started when first asked, and again after it ended or this process forked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def ask(self, request: dict[str, Any]) -> dict[str, str]:
        """Return the answer to a request; where the process ended over it, an error that says why."""
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
        return {"error": f"it ended the process that renders it (exit code {code})"}

    def stop(self) -> None:
        """End the process."""
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
        start_new_session=True,  # Ctrl-C is for this process, which may still ask
    )


_CHILD = _Child()
atexit.register(_CHILD.stop)


def render(tokenizer: Any, conversation: list[dict[str, Any]], **options: Any) -> str:
    """Return a conversation as the tokenizer's chat template words it, with the beginning of the model's turn.

    Raises
    ------
    TemplateError
        When the template fails, never ends or takes too much memory; it names the file.
    """
    template = tokenizer.chat_template
    if isinstance(template, dict):  # several by name
        template = template.get("default")
    if not isinstance(template, str):
        raise TemplateError(f"{template_file(tokenizer)}: the chat template is no text")
    request = {
        "conversations": [conversation],
        "chat_template": template,
        "add_generation_prompt": True,
        **tokenizer.special_tokens_map,
        **options,
        "seconds": SECONDS,
    }
    answer = _CHILD.ask(request)
    if "text" not in answer:
        reason = " ".join(answer["error"].split())
        raise TemplateError(f"{template_file(tokenizer)}: the chat template cannot word a prompt: {reason}")
    return answer["text"]


def template_file(tokenizer: Any) -> Path:
    """Return the file that holds a tokenizer's chat template, or the folder where there is none."""
    folder = Path(tokenizer.name_or_path)
    names = ("chat_template.json", "chat_template.jinja", "tokenizer_config.json")
    return next((folder / name for name in names if (folder / name).is_file()), folder)
