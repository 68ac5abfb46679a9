"""MkDocs hook: add the repository's pages outside `docs/` to the site, and rewrite relative links so that they work.

On GitHub a page links to files of the repository. On the site a link to a page leads to that page; a link to any other
file leads to the repository if `REPOSITORY_URL` names it, and becomes plain text otherwise.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent

#: {place on the site: page outside `docs/`}.
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    **{
        f"folders/{folder}.md": f"{folder}/README.md"
        for folder in (
            *("Aero-1", "JASCO", "LALM_Bench", "LALM_Bench/experiments", "Phi4MM", "Qwen_2.5_Omni", "Segment"),
            *("Voxtral", "X-ARES", "analyse_audio_duration", "kvpress"),
        )
    },
}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside `docs/` to the site's files; MkDocs calls this hook."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Return a page's Markdown with its relative links rewritten for the site; MkDocs calls this hook."""
    here = page.file.src_uri
    pages = {source: uri for uri, source in OUTSIDE.items()}
    pages |= {f"docs/{uri}": uri for uri in files.src_uris if uri not in OUTSIDE}
    folder = posixpath.dirname(OUTSIDE.get(here, f"docs/{here}"))

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link["path"]))
        anchor = link["anchor"] or ""
        if target in pages:
            path = posixpath.relpath(pages[target], posixpath.dirname(here) or ".")
            return f"{link['image']}[{link['text']}]({path}{anchor})"
        if not (ROOT / target).exists():
            return link[0]  # MkDocs names the broken link
        address = os.environ.get("REPOSITORY_URL")
        return f"[{link['text']}]({address}/blob/HEAD/{target}{anchor})" if address else link["text"]

    return _LINK.sub(rewritten, markdown)
