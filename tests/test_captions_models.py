"""FENSE's two models, on tiny random BERTs."""

from __future__ import annotations

import hashlib
import pickle
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from caption_folders import tiny_bert
from transformers import BertModel

from audiomarathon.errors import ModelError
from audiomarathon.files import write_json
from audiomarathon.scoring.caption_models import Echecker, SentenceEncoder, checker_file, fluency_checker, text_encoder

TEXTS = ["a dog barks", "rain", "", "dogs a a a a falls", "rain"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT of two layers and its tokenizer."""
    return tiny_bert(tmp_path_factory.mktemp("bert"))


def hidden(bert: Path, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return BertModel.from_pretrained(bert).eval()(torch.tensor([ids])).last_hidden_state[0]


def test_a_sentence_embedding_is_the_normalised_mean_of_the_last_hidden_states_of_its_tokens(bert: Path) -> None:
    mean = hidden(bert, [2, 4, 5, 6, 3]).mean(0)
    assert SentenceEncoder(str(bert)).encode(["a dog barks"])[0] == pytest.approx(
        (mean / mean.norm()).numpy(), abs=1e-5
    )


def told(bert: Path, place: Path, file: str, content: dict[str, Any]) -> SentenceEncoder:
    """Load the same weights with a configuration file of sentence-transformers beside them."""
    folder = Path(shutil.copytree(bert, place / "encoder"))
    write_json(folder / file, content)
    return SentenceEncoder(str(folder), window=None)


@pytest.mark.parametrize("config", [
    {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, {"pooling_mode": "cls"},
])  # fmt: skip
def test_with_cls_pooling_the_sentence_embedding_is_the_normalised_first_hidden_state(
    bert: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    encoder, first = told(bert, tmp_path, "1_Pooling/config.json", config), hidden(bert, [2, 4, 5, 6, 3])[0]
    assert encoder.encode(["a dog barks"])[0] == pytest.approx((first / first.norm()).numpy(), abs=1e-5)
    assert encoder.hash == SentenceEncoder(str(bert)).hash + "-cls"  # verdicts of mean pooling become invalid


def test_an_unsupported_pooling_of_a_sentence_encoder_is_refused(bert: Path, tmp_path: Path) -> None:
    encoder = told(bert, tmp_path, "1_Pooling/config.json", {"pooling_mode_max_tokens": True})
    with pytest.raises(ModelError, match="1_Pooling is max; allowed: mean, cls"):
        encoder.encode(["rain"])


def test_batch_size_does_not_change_sentence_embeddings(bert: Path) -> None:
    alone, together = (SentenceEncoder(str(bert), batch_size=size).encode(TEXTS) for size in (1, 64))
    assert alone.shape == (5, 16)
    assert alone.dtype == np.float32
    assert alone == pytest.approx(together, abs=1e-5)
    assert np.linalg.norm(alone, axis=1) == pytest.approx(np.ones(5), abs=1e-5)


def test_the_sentence_encoder_reads_only_its_window_but_counts_all_word_pieces(bert: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder(str(bert), window=6)
    for short in (encoder, told(bert, tmp_path, "sentence_bert_config.json", {"max_seq_length": 6})):
        first, second = short.encode(["a a a a falls", "a a a a rain"])
        assert first == pytest.approx(second, abs=1e-6)
    assert encoder.count_pieces(["dogs a a a a falls", "", "a " * 500]) == [9, 2, 502]
    assert encoder.count_pieces([]) == []


def checkpoint(bert: Path, place: Path, **more: Any) -> Echecker:
    """Save a checker in the format of FENSE's authors, position numbers included."""
    torch.manual_seed(1)
    state = {f"encoder.{name}": tensor for name, tensor in BertModel.from_pretrained(bert).state_dict().items()}
    state |= {"clf.weight": torch.randn(6, 16), "clf.bias": torch.randn(6)}
    state["encoder.embeddings.position_ids"] = torch.arange(128)[None]
    file = place / "checker.ckpt"
    torch.save({"model_type": str(bert), "num_classes": 6, "state_dict": state} | more, file)
    return Echecker(file, sha256=hashlib.sha256(file.read_bytes()).hexdigest())


def test_the_fluency_checker_returns_the_probability_from_the_last_of_its_six_outputs(
    bert: Path, tmp_path: Path
) -> None:
    checker = checkpoint(bert, tmp_path)
    state = torch.load(checker.checkpoint, weights_only=True)["state_dict"]
    logits = state["clf.weight"] @ hidden(bert, [2, 4, 5, 6, 3])[0] + state["clf.bias"]
    expected = float(logits.sigmoid()[5])
    assert checker.error(["A dog, barks!", "a dog barks", "rain"])[:2] == pytest.approx([expected] * 2, abs=1e-5)
    assert checker.error([]).shape == (0,)


def test_the_fluency_checker_ignores_text_after_the_64th_word_piece(bert: Path, tmp_path: Path) -> None:
    longest, other, shorter = checkpoint(bert, tmp_path).error(
        [f"{'a ' * 62}dog", f"{'a ' * 62}rain", f"{'a ' * 61}rain"]
    )
    assert longest == pytest.approx(other, abs=1e-6)
    assert abs(longest - shorter) > 1e-6


def test_a_missing_or_altered_sentence_encoder_or_fluency_checker_is_a_model_error(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        SentenceEncoder(str(tmp_path / "nowhere")).encode(["a"])
    with pytest.raises(ModelError, match="no such file; fetch it from https"):
        Echecker(tmp_path / "nowhere.ckpt").error(["a"])
    checker = checkpoint(bert, tmp_path)
    with pytest.raises(ModelError, match="SHA-256 is"):
        Echecker(checker.checkpoint).error(["a"])


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def test_a_fluency_checker_file_that_would_run_pickled_code_is_refused(bert: Path, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    for classes in (Evil(touched), 5):
        checker = checkpoint(bert, tmp_path, num_classes=classes)
        with pytest.raises(ModelError, match=r"checker\.ckpt: cannot be loaded as FENSE"):
            checker.error(["a"])
    assert not touched.exists()
    pickle.loads(pickle.dumps(Evil(touched)))
    assert touched.exists()


def test_caption_scorers_use_a_local_text_encoder_without_downloading(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIOMARATHON_CACHE", str(tmp_path))
    monkeypatch.delenv("TEXT_ENCODER", raising=False)
    assert text_encoder() is None
    assert text_encoder(str(tmp_path / "none")) is None
    assert (encoder := text_encoder(str(bert))) is not None
    assert (encoder.name, encoder.download) == (bert.name, False)
    monkeypatch.setenv("TEXT_ENCODER", str(bert))
    assert text_encoder() is encoder
    assert fluency_checker() is None
    checker_file().parent.mkdir()
    checker_file().write_bytes(b"x")
    assert (checker := fluency_checker()) is not None
    assert checker.checkpoint == checker_file()


def test_a_missing_text_encoder_error_names_the_settings_that_choose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_how: object) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError, match="set TEXT_ENCODER or --encoder to a folder") as caught:
        SentenceEncoder("org/encoder").encode(["a"])
    assert "MODEL_PATH" not in str(caught.value)
