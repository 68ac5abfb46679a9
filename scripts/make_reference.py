"""Fill the generated parts of `docs/reference.md` from the code: `python scripts/make_reference.py`.

A generated part lies between `<!-- made: NAME -->` and `<!-- end -->`; all other text is written by hand and kept.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from typer.main import get_command

from audiomarathon.cli.app import COMMANDS, app
from audiomarathon.records import Record
from audiomarathon.settings import described, flag_of, settings_fields

PAGE = Path(__file__).parent.parent / "docs" / "reference.md"
_PART = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ELSEWHERE = {
    "CUDA_VISIBLE_DEVICES": ("–", "read by the GPU driver"),
    "HF_TOKEN": ("–", "read by the hub's client: gated models, fewer limits"),
    "AUDIOMARATHON_CACHE": (
        "~/.cache/audiomarathon",
        "where synthetic audio, certificates and judges' answers are kept",
    ),
}


def settings() -> str:
    """Return the Markdown table of settings: env var, flag, default and meaning."""
    rows = ["| env var | flag | default | what |", "|---|---|---|---|"]
    for setting in settings_fields():
        told = {True: "1", False: "0", "": "–", (): "–", None: "–"}.get(setting.default, str(setting.default))
        rows.append(f"| `{setting.metadata['env']}` | `{flag_of(setting)}` | {told} | {described(setting)} |")
    rows += [f"| `{name}` | – | {default} | {what} |" for name, (default, what) in _ELSEWHERE.items()]
    return "\n".join(rows)


def commands() -> str:
    """Return Markdown tables of the commands, one per heading: what each does, and its options besides the settings."""
    made, lines = get_command(app), list[str]()
    of_settings = {flag_of(setting) for setting in settings_fields()}
    for heading, names in COMMANDS.items():
        lines += [f"### {heading}", "", "| command | what it does | options of its own |", "|---|---|---|"]
        for name in names:
            lines += _rows(f"audiomarathon {name}", made.commands[name], of_settings)  # type: ignore[attr-defined]
        lines.append("")
    return "\n".join(lines).rstrip()


def _rows(name: str, command: Any, of_settings: set[str]) -> list[str]:
    if hasattr(command, "commands"):
        return [
            row
            for sub, subcommand in command.commands.items()
            for row in _rows(f"{name} {sub}", subcommand, of_settings)
        ]
    first = (command.help or "").replace("\b", "").strip().split("\n\n")[0].split("\n")
    flags = [
        max(option.opts, key=len)
        for option in command.params
        if option.param_type_name == "option"
        and not {*option.opts} & of_settings
        and option.name != "help"
        and not option.hidden
    ]
    words = " ".join(line.strip() for line in first).replace("|", "\\|")
    return [f"| `{name}` | {words} | {' '.join(f'`{flag}`' for flag in flags)} |"]


def records() -> str:
    """Return a Markdown table of the fields of a line of samples.jsonl, from the docstring of :class:`Record`."""
    text = inspect.getdoc(Record) or ""
    parts = re.split(r"\n(?=\S)", text.partition("Attributes\n----------\n")[2])
    rows = ["| field | what |", "|---|---|"]
    for part in parts:
        names, _, what = part.partition("\n")
        what = re.sub(r":\w+:`[^`]*?(\w+)`", r"`\1`", " ".join(what.split())).replace("|", "\\|")
        rows.append(f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {what} |")
    return "\n".join(rows)


PARTS = {"settings": settings, "commands": commands, "records": records}


def filled(page: str) -> str:
    """Return the page's text with its generated parts replaced."""
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
