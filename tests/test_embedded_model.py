"""The bundled checkpoint is complete and small, and answers correctly."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, Qwen2_5OmniThinkerForConditionalGeneration

from audiomarathon.audio.decode import decode
from audiomarathon.benchmarks import get_task
from audiomarathon.compression.method import Base
from audiomarathon.embedded import CHECKPOINT, mini_benchmark, world
from audiomarathon.models.prompt import Prompt
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of a texture task and of a needle task: the benchmark split, unseen in training."""
    return mini_benchmark.generate(tmp_path_factory.mktemp("mini"), progress=False, tasks=["vox", "slue"], limit=1)


@pytest.fixture(scope="module")
def lm() -> Qwen2_5Omni:
    return Qwen2_5Omni.load(CHECKPOINT, device="cpu", dtype="float32", attn_implementation="sdpa")


def test_the_embedded_checkpoint_is_complete_and_at_most_10_mb() -> None:
    _, info = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(CHECKPOINT, output_loading_info=True)
    assert not any(info.values()), info
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= 10e6


def test_the_chat_template_of_the_embedded_model_is_that_of_qwen() -> None:
    message = {"role": "user", "content": [{"type": "audio", "audio": ""}, {"type": "text", "text": "Hi"}]}
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    assert tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|audio_bos|><|AUDIO|><|audio_eos|>Hi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_each_answer_word_of_the_embedded_model_is_one_token_and_any_text_is_decoded_unchanged() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    assert all(len(tokenizer.encode(f" {cue}")) == 1 for cue in world.cues())
    assert tokenizer.decode(tokenizer.encode("naïve 猫 42\n")) == "naïve 猫 42\n"


@pytest.mark.parametrize("task", ["vox", "slue"])
def test_the_embedded_model_answers_a_question_about_a_held_out_clip_correctly(
    lm: Qwen2_5Omni, root: Path, task: str
) -> None:
    (sample,) = get_task(task).load(root / task).samples[:1]
    inputs = lm.prepare([Prompt(get_task(task).prompt(sample), (decode(sample.clips[0], lm.sampling_rate),))])
    assert Base().generate(lm, inputs, max_new_tokens=48).replies[0].text == sample.answer
