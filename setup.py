"""Prepare the README for a package index, where a link to a file of the repository leads nowhere.

`REPOSITORY_URL=https://… python -m build` makes such links absolute; without an address they become plain text.
Everything else is in pyproject.toml.
"""

import os
import re
from pathlib import Path

from setuptools import setup

ADDRESS = os.environ.get("REPOSITORY_URL", "").rstrip("/")


def absolute(link: re.Match[str]) -> str:
    image, text, target = link.groups()
    if ADDRESS:
        return f"{image}[{text}]({ADDRESS}/{'raw' if image else 'blob'}/HEAD/{target})"
    return "" if image else text


readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
setup(
    long_description=re.sub(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)", absolute, readme),
    long_description_content_type="text/markdown",
)
