"""Make judges from the names that the user gives to the option `--with`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from audiomarathon.errors import SettingsError
from audiomarathon.judges.judge import Judge
from audiomarathon.judges.judgements import NAME
from audiomarathon.judges.local import LocalJudge
from audiomarathon.judges.replay import ReplayJudge
from audiomarathon.judges.toy import ToyJudge
from audiomarathon.plugins import look_up, plugins

GROUP = "audiomarathon.judges"  # entry point group
#: Short names of the papers' judges and their hub ids, for local use and for `endpoint:`.
KNOWN = {
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "qwen2.5-72b": "Qwen/Qwen2.5-72B-Instruct",
    "mistral-large-2411": "mistralai/Mistral-Large-Instruct-2411",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
}
#: Other values for `--with`, each with a description.
FORMS = {
    "toy": "counts the reference's words in the reply: no model, only to try commands",
    "a folder or hub id": "a chat model that transformers loads",
    "endpoint:MODEL": "a model behind OPENAI_BASE_URL",
    "replay:FILE": "stored judgements, judgements-NAME.jsonl",
}
_FORMS = ", ".join(FORMS)


def open_judges(given: str, *, batch_size: int = 8, download: bool = True) -> dict[str, Judge]:
    """Return the named judges, as {name: judge}, without loading or asking them.

    Parameters
    ----------
    given
        Judges separated by commas, each a folder or hub id, `endpoint:MODEL`, `replay:FILE`, a name of :data:`KNOWN` or
        of a plug-in; a prefix `NAME=` renames it.

    Raises
    ------
    SettingsError
        A judge is unknown, or two judges have the same name.
    """
    judges: dict[str, Judge] = {}
    for judge_text in filter(None, map(str.strip, given.split(","))):
        named = re.fullmatch(rf"({NAME.pattern})=(.+)", judge_text)
        if not named and "=" in judge_text.partition(":")[0] and not Path(judge_text).is_dir():
            raise SettingsError(f"--with {judge_text}: NAME in NAME=… must be 1 to 80 letters, digits, '.', '_' or '-'")
        judge = _open(named[2] if named else judge_text, batch_size, download)
        name = named[1] if named else _name(judge.key)
        if name in judges:
            raise SettingsError(f"--with: two judges have the name {name!r}; rename one of them: NAME={judge_text}")
        judges[name] = judge
    if not judges:
        raise SettingsError(f"--with is empty; name a judge: {', '.join(KNOWN)}, {_FORMS}")
    return judges


def _open(text: str, batch_size: int, download: bool) -> Judge:
    kind, _, where = text.partition(":")
    if kind == "replay":
        if not (file := Path(where).expanduser()).is_file():
            raise SettingsError(f"--with {text}: no such file; allowed: a run's file judgements-NAME.jsonl")
        return ReplayJudge(file)
    if kind in ("endpoint", "openai"):
        from audiomarathon.endpoint.client import Endpoint
        from audiomarathon.judges.endpoint import EndpointJudge

        if not where:
            raise SettingsError(f"--with {text}: name the model as on the server: {kind}:MODEL")
        return EndpointJudge(_name(where), Endpoint.from_env(KNOWN.get(where, where)), at_once=batch_size)
    if text.lower() == ToyJudge.key:
        return ToyJudge()
    source = where if kind == "local" else text
    others = plugged_in()
    is_plugin = any(text.lower() in (judge.key.lower(), *map(str.lower, judge.aliases)) for judge in others)
    if not is_plugin and (source in KNOWN or "/" in source or Path(source).is_dir()):  # ./NAME means the folder
        return LocalJudge(_name(source), KNOWN.get(source, source), batch_size, download=download)
    if not others:
        raise SettingsError(f"unknown judge {text[:60]!r}; allowed: {', '.join(KNOWN)}, {_FORMS}")
    return look_up(text, others, kind="judge")


def plugged_in() -> Sequence[Judge]:
    """Return the judges that other packages provide as plug-ins."""
    return plugins(GROUP, Judge)  # type: ignore[type-abstract]


def _name(source: str) -> str:
    """Return a judge's default name, made from its folder, hub id or key; it becomes part of file names."""
    return re.sub(r"[^\w.-]", "-", source.rstrip("/").rsplit("/", 1)[-1])[:80]
