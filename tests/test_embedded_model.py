"""The shipped checkpoint: whole, small, and worth asking."""

from pathlib import Path

import pytest
import soundfile
from transformers import AutoTokenizer, Qwen2_5OmniThinkerForConditionalGeneration

from audiomarathon.benchmarks import Sample, get_task
from audiomarathon.compression.method import Base
from audiomarathon.embedded import CHECKPOINT, mini_benchmark, world
from audiomarathon.models.prompt import Inputs, Prompt
from audiomarathon.models.qwen2_5_omni import Qwen2_5Omni


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of a texture task, of a needle task, and to transcribe: the benchmark split, unseen in training."""
    return mini_benchmark.generate(
        tmp_path_factory.mktemp("mini"), progress=False, tasks=["librispeech", "vox", "slue"], limit=1
    )


@pytest.fixture(scope="module")
def lm() -> Qwen2_5Omni:
    return Qwen2_5Omni.load(CHECKPOINT, device="cpu", dtype="float32", attn_implementation="sdpa")


def prepared(lm: Qwen2_5Omni, root: Path, task: str, index: int = 0) -> tuple[Sample, Inputs]:
    sample = get_task(task).load(root / task).samples[index]
    samples, rate = soundfile.read(sample.clips[0], dtype="float32")
    if rate != lm.sampling_rate:
        soxr = pytest.importorskip("soxr")
        samples = soxr.resample(samples, rate, lm.sampling_rate)
    return sample, lm.prepare([Prompt(get_task(task).prompt(sample), (samples,))])


def reply(lm: Qwen2_5Omni, inputs: Inputs) -> str:
    return Base().generate(lm, inputs, max_new_tokens=48).replies[0].text


def test_the_embedded_checkpoint_is_complete_and_at_most_10_mb() -> None:
    _, info = Qwen2_5OmniThinkerForConditionalGeneration.from_pretrained(CHECKPOINT, output_loading_info=True)
    assert not any(info.values()), info
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) <= 10e6


def test_each_answer_word_of_the_embedded_model_is_one_token_and_its_chat_template_is_qwens() -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    assert all(len(tokenizer.encode(f" {cue}")) == 1 for cue in world.cues())
    message = {"role": "user", "content": [{"type": "audio", "audio": ""}, {"type": "text", "text": "Hi"}]}
    assert tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n<|audio_bos|><|AUDIO|><|audio_eos|>Hi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(tokenizer.encode("naïve 猫 42\n")) == "naïve 猫 42\n"


@pytest.mark.parametrize("task", ["vox", "slue"])
def test_the_embedded_model_answers_a_question_about_a_held_out_clip_correctly(
    lm: Qwen2_5Omni, root: Path, task: str
) -> None:
    sample, inputs = prepared(lm, root, task)
    assert reply(lm, inputs) == sample.answer


@pytest.mark.xfail(reason="the shipped weights do not transcribe yet (docs/embedded.md)", strict=True)
def test_the_embedded_model_transcribes_a_held_out_clip(lm: Qwen2_5Omni, root: Path) -> None:
    sample, inputs = prepared(lm, root, "librispeech")
    wanted, said = sample.answer.lower().split(), reply(lm, inputs).split()
    assert len(wanted) >= 10
    assert sum(a == b for a, b in zip(wanted, said, strict=False)) >= 0.7 * len(wanted)
