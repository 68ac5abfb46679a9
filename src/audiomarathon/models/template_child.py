"""Script of the process that renders chat templates: it reads requests as lines of JSON, and answers each with a line.

`templates.py` runs this script. A template is code from a checkpoint, which may loop forever or fill the memory. So the
process has a memory limit, and it is ended if a request takes too long.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_MEMORY_MB = 512
_MOST_TEXT = 10_000_000


def main() -> None:
    """Render the chat template of each request on stdin; answer on stdout with `{"text": …}` or `{"error": …}`."""
    from transformers.utils.chat_template_utils import render_jinja_template

    with suppress(OSError, ValueError):  # some systems have no /proc, or no such limit
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + (_MEMORY_MB << 20),) * 2)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request.pop("seconds"))  # CPU time; SIGPROF then ends the process
        answer = _rendered(render_jinja_template, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _rendered(render: Any, request: dict[str, Any]) -> dict[str, str]:
    try:
        (text,), _ = render(**request)
    except MemoryError:
        return {"error": f"it takes more than {_MEMORY_MB} MB of memory"}
    except Exception as error:  # a template may raise anything
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"text": text} if len(text) <= _MOST_TEXT else {"error": f"it writes {len(text):,} characters"}


if __name__ == "__main__":
    main()
