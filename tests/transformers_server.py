"""transformers' own OpenAI-compatible server on loopback: a real server with a real model.

Run as a program, it is `transformers serve` with only the text and audio parts of Qwen2.5-Omni's processor. The whole
processor also handles images, which requires torchvision.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a checkpoint in float32 on the CPU; yield the address, including `/v1`.

    The test is skipped where the server's packages are missing.
    """
    for name in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(name, reason="pip install 'audiomarathon[test-real]'")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    options = ["--device", "cpu", "--dtype", "float32"]
    with subprocess.Popen([*command, *options], env=os.environ | {"HF_HUB_OFFLINE": "1"}) as process:
        try:
            for _ in range(240):
                assert process.poll() is None, "transformers serve ended"
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def _serve() -> None:
    from transformers import AutoProcessor, AutoTokenizer, Qwen2_5OmniThinkerConfig, WhisperFeatureExtractor
    from transformers.cli.transformers import main

    from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni

    class AudioAndText(Qwen2_5Omni.processor):  # type: ignore[misc]
        @classmethod
        def from_pretrained(cls, path: str, **_: Any) -> Any:
            tokenizer = AutoTokenizer.from_pretrained(path)
            extractor = WhisperFeatureExtractor.from_pretrained(path)
            return cls(feature_extractor=extractor, tokenizer=tokenizer, chat_template=tokenizer.chat_template)

    AutoProcessor.register(Qwen2_5OmniThinkerConfig, AudioAndText, exist_ok=True)
    main()


if __name__ == "__main__":
    _serve()
