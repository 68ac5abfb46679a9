"""Cache judges' answers on disk, so that a judge is not sent the same request twice."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from audiomarathon.files import read_plain, sealed, unsealed
from audiomarathon.judges.judge import Reply
from audiomarathon.judges.judgements import Request, is_reply
from audiomarathon.records import MAX_REPLY

_FIELDS = {field.name for field in fields(Reply)}


class Cache:
    """A judge's stored answers, each in a file `judgements/ab/<hash>.json`, written atomically.

    Any number of processes may use one cache.

    Parameters
    ----------
    root
        The cache folder.
    identity
        Everything that the judge's answers depend on (see :meth:`Judge.identity`); it is part of the key of each
        answer.
    """

    def __init__(self, root: Path, identity: Mapping[str, Any]) -> None:
        self._root, self._identity = root / "judgements", dict(identity)

    def get(self, request: Request) -> Reply | None:
        """Return the judge's cached answer to a request.

        None if there is no answer, or its file is damaged, belongs to another request, or holds no valid answer.
        """
        try:
            content = unsealed(read_plain(self._file(request)), always=True) or {}
        except OSError:
            return None
        if (content.get("identity"), content.get("request")) != (self._identity, asdict(request)):
            return None
        stored = content.get("reply")
        if not isinstance(stored, dict) or stored.keys() != _FIELDS or not is_reply(stored):
            return None
        return Reply(**stored) if stored["error"] is None and len(stored["text"]) <= MAX_REPLY else None

    def put(self, request: Request, reply: Reply) -> None:
        """Store a judge's answer. If the file cannot be written, do nothing; the judge will be asked again."""
        file = self._file(request)
        content = {"identity": self._identity, "request": asdict(request), "reply": asdict(reply)}
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as stream:
                try:
                    stream.write(sealed(content))
                    stream.flush()
                    os.replace(stream.name, file)  # noqa: PTH105
                finally:
                    Path(stream.name).unlink(missing_ok=True)

    def _file(self, request: Request) -> Path:
        what = json.dumps([self._identity, request.hash], sort_keys=True)
        name = hashlib.sha256(what.encode()).hexdigest()
        return self._root / name[:2] / f"{name}.json"
