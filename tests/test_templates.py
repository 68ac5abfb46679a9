"""Chat templates are code. A template that fails, loops or eats memory is reported in one line that names its file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import noise
from transformers import AutoTokenizer

from audiomarathon.engine.engine import open_local
from audiomarathon.errors import TemplateError
from audiomarathon.models import templates
from audiomarathon.models.chat import chat_text, conversation
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.templates import render
from audiomarathon.settings import own_settings

PROMPT = Prompt("Which?\n\nA. cat 🐈 \ud800 \x00", (noise(0.1), noise(0.1)))
DOUBLING = (
    "{% set ns = namespace(s='x' * 1000) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"
)
LOOP = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
NONSENSE = {
    DOUBLING: "512 MB",
    "{{ 'x'.center(10**11) }}": "512 MB",
    "{{ 'x' * 20000000 }}": "writes 20,000,000 characters",
    "{% if %}": "TemplateSyntaxError",
    "{{ raise_exception('no\nway') }}": "no way",
    "{{ messages[0].content + 1 }}": "TypeError",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "RecursionError",
    "{{ messages.__class__.__mro__ }}": "SecurityError",
    "plain": "no <|AUDIO|> for audio",
}


@pytest.fixture
def tokenizer(tiny_checkpoint: Path, tmp_path: Path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "spoilt")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
    return tokenizer


def refused(tokenizer, template: object, said: str) -> None:
    tokenizer.chat_template = template
    with pytest.raises(TemplateError) as caught:
        chat_text(tokenizer, PROMPT, "<|AUDIO|>")
    assert str(caught.value).startswith(f"{tokenizer.name_or_path}/chat_template.json: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rendered_prompt_text_equals_that_of_the_chat_template_of_transformers(tokenizer) -> None:
    rendered = tokenizer.apply_chat_template(conversation(PROMPT), tokenize=False, add_generation_prompt=True)
    assert chat_text(tokenizer, PROMPT, "<|AUDIO|>") == rendered


@pytest.mark.parametrize("template", NONSENSE)
def test_a_broken_chat_template_is_refused_and_the_next_prompt_is_rendered(tokenizer, template: str) -> None:
    sound = tokenizer.chat_template
    refused(tokenizer, template, NONSENSE[template])
    tokenizer.chat_template = sound  # the next prompt is rendered
    assert "<|AUDIO|>" in chat_text(tokenizer, PROMPT, "<|AUDIO|>")


def test_a_chat_template_that_never_ends_is_stopped_and_refused(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 0.2)
    refused(tokenizer, LOOP, "more than 0.2 s")


@pytest.mark.parametrize("template", [5, ["x"], {"other": "x"}])
def test_a_chat_template_that_is_not_text_is_refused(tokenizer, template: object) -> None:
    refused(tokenizer, template, "text")


def test_the_process_that_renders_chat_templates_is_restarted_after_it_was_killed(
    tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []
    start, said = (
        templates._started,
        """for _ in open(0): print('{"text": "of a stand-in, which starts sooner"}', flush=True)""",
    )

    def begin() -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(start() if started else subprocess.Popen([sys.executable, "-S", "-c", said], **pipes))
        return started[-1]

    monkeypatch.setattr(templates, "_started", begin)
    monkeypatch.setattr(templates, "_CHILD", templates._Child())
    texts = [render(tokenizer, conversation(PROMPT)) for _ in range(2)]
    os.kill(started[0].pid, signal.SIGKILL)
    started[0].wait()
    texts.append(render(tokenizer, conversation(PROMPT)))
    assert ["stand-in" in text for text in texts] == [True, True, False]
    assert len(started) == 2
    templates._CHILD.stop()
    assert started[1].returncode == 0


def test_a_model_with_a_broken_chat_template_is_refused_before_its_first_sample(tokenizer) -> None:
    folder = Path(tokenizer.name_or_path)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "{{ messages[0].content + 1 }}"}))
    with pytest.raises(TemplateError, match=r"^[^\n]*spoilt/chat_template\.json: [^\n]*$"):
        open_local("qwen2.5-omni-3b", own_settings(model_path=str(folder)))
