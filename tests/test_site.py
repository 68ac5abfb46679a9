"""The documentation site: `mkdocs.yml` and `scripts/site_pages.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_the_navigation_lists_every_docs_page_once() -> None:
    listed = re.findall(r"^ +- [^\n]+: (\S+\.md)$", CONFIG, re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(listed)


def test_every_folder_with_a_readme_has_a_page_of_the_site() -> None:
    for readme in ROOT.glob("[!.]*/README.md"):  # pytest keeps one in a hidden folder
        assert f"folders/{readme.parent.name}.md" in CONFIG, readme


def built(folder: Path, repository: str = "") -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    env = os.environ | {"REPOSITORY_URL": repository, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
@pytest.mark.skipif(not find_spec("material"), reason="mkdocs-material is not installed (make docs)")
def test_the_docs_site_builds_without_warnings(tmp_path: Path) -> None:
    plain, linked = built(tmp_path / "plain"), built(tmp_path / "linked", "https://example.org/suite")
    reply = "src/audiomarathon/scoring/choice_reading.py"
    for site, wanted in ((plain, False), (linked, True)):
        page = (site / "coming-from" / "index.html").read_text(encoding="utf-8")
        assert (f'href="https://example.org/suite/blob/HEAD/{reply}"' in page) == wanted
    start = (plain / "index.html").read_text(encoding="utf-8")
    assert 'href="contributing/"' in start
    assert 'href="folders/Phi4MM/"' in start
    assert 'src="explain.png"' in start
    encoders = (plain / "encoders" / "index.html").read_text(encoding="utf-8")
    assert 'href="../folders/X-ARES/"' in encoders
    assert 'href="../contributing/#an-encoder"' in encoders
    articles = "".join(
        re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for page in plain.rglob("index.html")
    )
    assert "|---" not in articles  # a table without an empty line before it
