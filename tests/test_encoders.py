"""Encoders are found by name, loaded and checked: those of transformers, the published baselines, the controls."""

from __future__ import annotations

import functools
import shutil
import sys
import types
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest
import torch
import transformers
from conftest import call

from audiomarathon.encoders import check_audio_encoder, check_encoder, from_module, load_encoder
from audiomarathon.errors import AudioMarathonError, EncoderError
from audiomarathon.wings.encoders.check import Checked
from audiomarathon.wings.encoders.registry import EncoderSpec


class FrameEncoder(torch.nn.Module):
    """Multiply centred and scaled frames of 40 ms by a matrix: an encoder that passes all checks."""

    sampling_rate, output_dim, hop_size_in_ms = 16000, 8, 40

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(640, 8, generator=torch.Generator().manual_seed(0)))
        self.eval()

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        audio = torch.nn.functional.pad(audio, (0, -audio.shape[-1] % 640)).unflatten(-1, (-1, 640))
        audio = audio - audio.mean(-1, keepdim=True)
        return audio / audio.norm(dim=-1, keepdim=True).clamp_min(1e-6) @ self.matrix


def variant(forward: Any = None, name: str = "FrameEncoder", **attributes: Any) -> FrameEncoder:
    """Return a FrameEncoder with another class name, other attributes, or changed features."""

    def changed(self: FrameEncoder, audio: torch.Tensor) -> Any:
        return forward(FrameEncoder.forward(self, audio), audio)

    return type(name, (FrameEncoder,), attributes | ({"forward": changed} if forward else {}))()


def waves(*seconds: float, rate: int = 16000) -> tuple[torch.Tensor, list[int]]:
    """Return noise of these lengths in one zero-padded batch, and the lengths in samples."""
    lengths = [int(rate * duration) for duration in seconds]
    generator = torch.Generator().manual_seed(7)
    rows = [torch.randn(length, generator=generator) * 0.1 + 0.02 for length in lengths]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), lengths


# -- checkpoints ------------------------------------------------------------------------------------------------------

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
WAVE = SMALL | {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
WHISPER = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 64}
WHISPER |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_mel_bins": 80}
WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WAVE_EXTRACTOR = transformers.Wav2Vec2FeatureExtractor
KINDS: dict[str, tuple[Any, Any]] = {
    "wav2vec2": (transformers.Wav2Vec2Config(**WAVE), WAVE_EXTRACTOR()),
    "hubert": (transformers.HubertConfig(**WAVE), WAVE_EXTRACTOR(do_normalize=False)),
    "wavlm": (transformers.WavLMConfig(**WAVE), WAVE_EXTRACTOR()),
    "data2vec": (transformers.Data2VecAudioConfig(**WAVE, conv_pos_kernel_size=3), WAVE_EXTRACTOR()),
    "whisper": (transformers.WhisperConfig(**WHISPER), transformers.WhisperFeatureExtractor()),
    "ast": (transformers.ASTConfig(**SMALL), transformers.ASTFeatureExtractor()),
}


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("encoders")
    for name, (config, extractor) in KINDS.items():
        torch.manual_seed(0)
        transformers.AutoModel.from_config(config).save_pretrained(root / name)
        extractor.save_pretrained(root / name)
    return root


@functools.cache
def documented(folder: Path) -> tuple[Any, Any]:
    """Load a checkpoint's encoder and feature extractor as transformers documents it."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    return model.get_encoder() if folder.name == "whisper" else model, extractor


def reference(folder: Path, clip: torch.Tensor) -> torch.Tensor:
    """Return the features that transformers gives of one clip."""
    model, extractor = documented(folder)
    inputs = extractor(clip.numpy(), sampling_rate=16000, return_tensors="pt")
    with torch.no_grad():
        features: torch.Tensor = model(**inputs).last_hidden_state[0]
    return features


@pytest.mark.parametrize(("kind", "hop"), [(kind, 100 if kind == "ast" else 20) for kind in KINDS])
def test_an_hf_encoder_gives_each_clip_the_features_of_transformers(
    checkpoints: Path, tmp_path: Path, kind: str, hop: int
) -> None:
    encoder = load_encoder(f"hf:{checkpoints / kind}")
    assert (encoder.name, encoder.output_dim, encoder.hop_size_in_ms) == (kind, 16, hop)
    assert encoder.takes_lengths == (encoder.max_seconds is not None) == (kind in ("whisper", "ast"))
    audio, lengths = waves(2, 1, 0.3)
    alone = [encoder.encode(row[None, :length])[0] for row, length in zip(audio, lengths, strict=True)]
    for row, length, features in zip(audio, lengths, alone, strict=True):
        expected = reference(checkpoints / kind, row[:length])
        if kind == "ast":  # bands by time, after two class tokens
            expected = expected[2:].reshape(12, 101, 16).mean(0)
        torch.testing.assert_close(features, expected[: len(features)], atol=2e-5, rtol=1e-4)
    frames = {"whisper": [100, 50, 15], "ast": [19, 9, 2]}.get(kind, [99, 49, 14])
    assert [len(features) for features in alone] == frames
    if encoder.takes_lengths:
        torch.testing.assert_close(encoder.encode(audio, lengths), alone, atol=1e-5, rtol=1e-4)
        with pytest.raises(EncoderError, match="longer than max_seconds"):
            encoder.encode(waves(31)[0])
    else:
        with pytest.raises(EncoderError, match="equal length"):
            encoder.encode(audio, lengths)
    assert encoder.encode(waves(0.01)[0])[0].shape == (1, 16)
    moved = shutil.copytree(checkpoints / kind, tmp_path / "moved")
    assert load_encoder(f"hf:{moved}").identity == encoder.identity


@pytest.mark.parametrize("kind", ["wav2vec2", "data2vec"])
def test_wav2vec2_and_data2vec_baselines_normalise_and_encode_audio_in_10_s_pieces(
    checkpoints: Path, kind: str
) -> None:
    encoder = load_encoder(f"baseline:{kind}", {"model": str(checkpoints / kind)})
    assert (encoder.name, encoder.hop_size_in_ms, encoder.takes_lengths) == (kind, 20, False)
    model = transformers.AutoModel.from_pretrained(checkpoints / kind).eval()
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoints / kind)

    def released(piece: torch.Tensor) -> torch.Tensor:  # the extractor takes a tensor as one array
        with torch.no_grad():
            values = extractor(piece, sampling_rate=16000, return_tensors="pt").input_values.reshape(piece.shape)
            features: torch.Tensor = model(values).last_hidden_state
        return features

    audio, _ = waves(10.2, 10.1)
    audio[1] *= 5
    padded = torch.nn.functional.pad(audio[:, 160_000:], (0, 12_800))
    expected = torch.cat([released(audio[:, :160_000]), released(padded)], dim=1)
    torch.testing.assert_close(torch.stack(encoder.encode(audio)), expected, atol=1e-4, rtol=1e-3)
    assert expected.shape[1] == 499 + 49
    assert len(encoder.encode(waves(0.1)[0])[0]) == 4  # only the last piece of a longer clip is padded
    assert encoder.module(waves(1)[0][0]).shape == (1, 49, 16)  # [T] is accepted


def test_the_whisper_baseline_encoder_declares_half_of_its_real_hop_size(checkpoints: Path) -> None:
    encoder = load_encoder("baseline:whisper", {"model": str(checkpoints / "whisper")})
    assert (encoder.hop_size_in_ms, encoder.output_dim) == (10, 16)
    audio, _ = waves(1)
    torch.testing.assert_close(encoder.encode(audio)[0], reference(checkpoints / "whisper", audio[0]))
    assert len(encoder.encode(waves(10.5)[0])[0]) == 3000
    assert "hop off" in [finding.name for finding in check_encoder(encoder).findings]


def test_dasheng_baseline_without_the_dasheng_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model(torch.nn.Module):
        def forward(self, audio: torch.Tensor) -> torch.Tensor:
            return audio.new_ones(len(audio), audio.shape[1] // 640, 768)

    monkeypatch.setitem(sys.modules, "dasheng", None)
    with pytest.raises(EncoderError, match=r"pip install 'audiomarathon\[encoders\]'"):
        load_encoder("baseline:dasheng")
    monkeypatch.setitem(sys.modules, "dasheng", types.SimpleNamespace(dasheng_base=lambda path: Model()))
    encoder = load_encoder("baseline:dasheng")
    assert encoder.encode(waves(10.1)[0])[0].shape == (250 + 25, 768)


def test_x_ares_example_files_load_and_pass_the_interface_check(checkpoints: Path) -> None:
    for kind, name in (("wav2vec2", "Wav2vec2Encoder"), ("whisper", "WhisperEncoder"), ("data2vec", "Data2VecEncoder")):
        file = Path(__file__).parents[1] / f"X-ARES/example/{kind}/{kind}_encoder.py"
        encoder = load_encoder(str(file), {"model": str(checkpoints / kind)})
        assert encoder.name == name
        assert check_audio_encoder(encoder.module)


@pytest.mark.parametrize("name", ["logmel", "random", "length-loudness", "noise"])
def test_a_control_encoder_gives_the_same_embeddings_each_time_it_is_loaded(name: str) -> None:
    encoder = load_encoder(f"control:{name}")
    assert encoder.name == name
    names = {finding.name for finding in check_encoder(encoder).findings}
    assert names <= {"gain sensitive", "offset sensitive", "hop off"}
    assert ("hop off" in names) == (name == "length-loudness")
    again = load_encoder(f"control:{name}")
    assert again.identity == encoder.identity
    torch.testing.assert_close(again.encode(waves(1)[0]), encoder.encode(waves(1)[0]), rtol=0, atol=0)


def test_control_encoder_outputs_equal_values_computed_by_hand() -> None:
    audio, lengths = waves(2, 1)
    rows = load_encoder("control:length-loudness").encode(audio, lengths)
    loudness = [20 * torch.log10(row[:n].square().mean().sqrt()) for row, n in zip(audio, lengths, strict=True)]
    places = torch.linspace(-2.9957323, 6.3969297, 32), torch.linspace(-80, 0, 32)
    values = torch.tensor([0.6931472, 0.0]), torch.stack(loudness)
    steps = [(value[:, None] - place) / place.diff()[0] for value, place in zip(values, places, strict=True)]
    expected = torch.cat([torch.exp(-(step**2)) for step in steps], dim=1)
    torch.testing.assert_close(torch.cat(rows), expected, atol=1e-4, rtol=1e-4)
    tone = torch.sin(torch.arange(16000) * 2 * torch.pi * 1000 / 16000)[None]
    bins = load_encoder("control:logmel").encode(tone)[0].mean(0)
    assert int(bins.argmax()) == 21  # 1000 Hz: linear up to 1 kHz in Slaney's scale, mel 15 of 0 … 45.2 in 65 steps
    noise = load_encoder("control:noise").encode(waves(9)[0])[0]
    assert (float(noise.mean()), float(noise.std())) == pytest.approx((0, 1), abs=0.03)


# -- the check --------------------------------------------------------------------------------------------------------


def _without(name: str) -> torch.nn.Module:
    facts = {attribute: 8 for attribute in ("output_dim", "sampling_rate", "hop_size_in_ms") if attribute != name}
    bare: torch.nn.Module = type("BareEncoder", (torch.nn.Module,), facts)()
    return bare


def _raises(features: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (variant(name="Frames"), "must end with 'Encoder'"),
        (type("NoModuleEncoder", (), {})(), "torch.nn.Module"),
        *((_without(name), f"'{name}'") for name in ("output_dim", "sampling_rate", "hop_size_in_ms")),
        (variant(_raises), "ValueError: boom"),
        (variant(lambda features, audio: (features,)), "must be a tensor"),
        (variant(lambda features, audio: features[0]), "3 dimensions"),
        (variant(lambda features, audio: features[:1]), "batch size 2"),
        (variant(output_dim=9), "output_dim=9"),
    ],
)
def test_each_interface_error_of_an_encoder_is_reported(encoder: Any, said: str) -> None:
    with TestCase().assertLogs(level="ERROR") as logged:
        assert not check_audio_encoder(encoder)
    (error,) = check_encoder(encoder).errors
    assert said in error
    assert [record.getMessage() for record in logged.records] == [error]


def _no_short(features: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
    assert audio.shape[-1] > 1000, "too short"
    return features


HIDDEN = [torch.nn.Parameter(torch.ones(8))]
FINDINGS: dict[str, tuple[Any, str]] = {
    "hop off": (variant(hop_size_in_ms=20), "1 s give 25 frames, hop_size_in_ms=20 says 50"),
    "not finite": (variant(lambda features, audio: features / (audio.abs().sum() > 0)), "silence"),
    "fails": (variant(_no_short), "0.05 s of noise"),
    "not deterministic": (variant(lambda features, audio: features + torch.rand(()) * 0.01), "relative"),
    "hears its neighbours": (variant(lambda features, audio: features * audio.shape[-1]), "relative"),
    "gain sensitive": (variant(lambda features, audio: features * audio.std()), "relative"),
    "offset sensitive": (variant(lambda features, audio: features + audio.mean(-1)[:, None, None]), "relative"),
    "training mode": (variant().train(), "eval() was called"),
    "gradients": (variant(lambda features, audio: features * HIDDEN[0]), "outside the module"),
    "wrong device": (variant(lambda features, audio: features.to("meta")), "on cpu gives features on meta"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_each_undesirable_property_of_an_encoder_is_reported_as_a_finding(name: str) -> None:
    encoder, said = FINDINGS[name]
    checked = check_encoder(encoder)
    if name == "not finite":
        assert any(said in line for line in checked.errors)
    else:
        assert checked.errors == ()
        assert said in {finding.name: finding.line for finding in checked.findings}[name]
    assert not encoder.training


def test_a_valid_encoder_passes_the_encoder_check_without_findings() -> None:
    assert check_encoder(FrameEncoder()) == Checked()
    assert check_audio_encoder(FrameEncoder())
    tired = variant(lambda features, audio: features / (audio.shape[-1] < 100 * 16000))
    assert check_encoder(tired).findings == ()
    assert check_encoder(variant(max_seconds=0.8)).findings == ()
    assert [line[:26] for line in check_encoder(tired, long=True).errors] == ["not finite: 600 s of noise"]


# -- loading ----------------------------------------------------------------------------------------------------------

SOURCE = """
import torch
from helper import DIM, HelperEncoder

class SomeEncoder(torch.nn.Module):
    sampling_rate, hop_size_in_ms = 16000, 40
    def __init__(self, scale=1.0, flip=False, word="", layer=0):
        super().__init__()
        self.output_dim, self.got, self.layer = DIM, (scale, flip, word), layer
        self.linear = torch.nn.Linear(640, DIM)
        torch.nn.init.ones_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)
    def forward(self, audio):
        return self.linear(audio.unflatten(1, (-1, 640)))
"""
HELPER = "import torch\nDIM = 4\nclass HelperEncoder(torch.nn.Module): pass\n"


@pytest.fixture
def some(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text(HELPER)
    file = tmp_path / "some encoder.py"
    file.write_text(SOURCE)
    return file


def test_an_encoder_file_is_loaded_by_its_path_with_arguments(some: Path) -> None:
    path = list(sys.path)
    encoder = load_encoder(str(some), {"scale": "1e-3", "flip": "True", "word": "a", "layer": "3"})
    assert (encoder.name, encoder.module.got, encoder.module.layer) == ("SomeEncoder", (1e-3, True, "a"), 3)
    assert (encoder.was_training, encoder.module.training) == (True, False)
    assert not any(parameter.requires_grad for parameter in encoder.module.parameters())
    assert encoder.encode(torch.ones(2, 1280))[1].tolist() == [[640.0] * 4] * 2
    assert sys.path == path
    assert "helper" not in sys.modules
    some.write_text(SOURCE + "\nclass OtherEncoder(SomeEncoder): pass\n")
    with pytest.raises(EncoderError, match=r"several encoders \(…Encoder\); name one, as some encoder\.py:SomeEncoder"):
        load_encoder(str(some))
    assert load_encoder(f"{some}:OtherEncoder").name == "OtherEncoder"


def test_the_encoder_identity_changes_with_arguments_code_and_weights(some: Path) -> None:
    seen = [load_encoder(str(some), {"layer": "1"}).identity]
    for source, helper in ((SOURCE, HELPER), (SOURCE.replace("ones_", "zeros_"), HELPER), (SOURCE + "MORE = 1", HELPER),
                           (SOURCE + "MORE = 1", HELPER + "MORE = 1")):  # fmt: skip
        some.write_text(source)
        (some.parent / "helper.py").write_text(helper)
        seen.append(load_encoder(str(some)).identity)
        assert load_encoder(str(some)).identity == seen[-1]
    (some.parent / "helper.py").write_text(f'"""Helps."""\n{HELPER}MORE = 1  # more')
    assert load_encoder(str(some)).identity == seen[-1]  # only a docstring and a comment are new
    assert len({str(identity) for identity in seen}) == len(seen)
    same, layered, weighed = FrameEncoder(), FrameEncoder(), FrameEncoder()
    layered.layer = 3
    weighed.matrix[5, 5] += 1e-6
    plain = from_module(FrameEncoder()).identity
    assert [from_module(encoder).identity == plain for encoder in (same, layered, weighed)] == [True, False, False]


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("x = 1", "", "no nn.Module class named …Encoder"),
        ("from torch.nn import TransformerEncoder", "", "no nn.Module class named …Encoder"),
        (SOURCE, ":NoEncoder", "NoEncoder"),
        ("import nowhere_to_be_found", "", "No module named"),
        ("def (", "", "SyntaxError"),
        ("import sys; sys.exit(3)", "", "SystemExit"),
        (SOURCE.replace("DIM, (scale", "0, (scale"), "", "output_dim must be a positive whole number, got 0"),
        (SOURCE.replace("hop_size_in_ms = 16000, 40", "hop = 16000, 40"), "", "hop_size_in_ms must be a positive"),
        (SOURCE.replace("=1.0,", ","), "", "scale"),
    ],
)
def test_an_unusable_encoder_file_is_one_error_line(some: Path, source: str, name: str, said: str) -> None:
    some.write_text(source)
    with pytest.raises(EncoderError) as raised:
        load_encoder(f"{some}{name}")
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("baseline:whisperr", "did you mean 'baseline:whisper'"),
        ("nothing", "control:noise, hf:ID_OR_FOLDER, FILE.py[:CLASS]"),
        ("no/such/file.py", "No such file"),
        ("hf:/no/such/folder", "no such folder"),
        ("hf:org/gone", "copy the cache, or name a folder that holds the checkpoint: hf:FOLDER"),
    ],
)
def test_an_unknown_encoder_name_is_refused(name: str, said: str) -> None:
    with pytest.raises(AudioMarathonError, match=said.replace("[", r"\[")):
        load_encoder(name)


def test_an_hf_encoder_of_a_model_type_without_audio_is_refused(checkpoints: Path, tmp_path: Path) -> None:
    transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=9)).save_pretrained(tmp_path)
    with pytest.raises(AudioMarathonError, match=r"model type 'bert'; allowed: wav2vec2"):
        load_encoder(f"hf:{tmp_path}")


def test_a_plug_in_encoder_is_found_by_key_and_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = types.SimpleNamespace(name="frames", value="x:y", load=lambda: EncoderSpec("me/frames", variant, ("fr",)))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    assert load_encoder("fr").name == load_encoder("me/frames", {"extra": "2"}).name == "frames"
    assert load_encoder("fr", {"extra": "2"}).identity["arguments"] == {"extra": 2}


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda features, audio: features[:, :, :3], r"expected \[1, frames, 8\], got \[1, 25, 3\]"),
        (lambda features, audio: features[:, :0], r"got \[1, 0, 8\]"),
        (lambda features, audio: None, "features must be a tensor, got NoneType"),
        (lambda features, audio: features.numpy().astype(object), "must be a tensor, got ndarray"),
        (lambda features, audio: torch.fft.fft(features), "floating-point numbers, got torch.complex64"),
        (lambda features, audio: features > 0, "floating-point numbers, got torch.bool"),
        (lambda features, audio: features.long(), "floating-point numbers, got torch.int64"),
        (lambda features, audio: features.to_sparse(), "dense tensor, got a torch.sparse_coo"),
        (lambda features, audio: torch.quantize_per_tensor(features, 0.1, 0, torch.qint8), "got a quantized tensor"),
        (lambda features, audio: torch.nested.nested_tensor([*features]), "got a nested tensor"),
        (lambda features, audio: features.to("meta"), "raised NotImplementedError"),
        (lambda features, audio: features[0], r"3 dimensions \[B, T, D\], got \[25, 8\]"),
        (lambda features, audio: sys.exit(0), "raised SystemExit: 0"),
        (lambda features, audio: (_ for _ in ()).throw(GeneratorExit("odd")), "raised GeneratorExit: odd"),
        (lambda features, audio: (features, torch.ones(1, 2)), "raised TypeError"),
        (lambda features, audio: features * float("nan"), "not finite"),
    ],
)
def test_an_encoder_whose_output_breaks_the_interface_is_refused(forward: Any, said: str) -> None:
    with pytest.raises(EncoderError, match=f"FrameEncoder: .*{said}"):
        from_module(variant(forward)).encode(waves(1)[0])


@pytest.mark.parametrize("exit_code", [None, 0, 3, "bye"])
def test_an_encoder_that_calls_sys_exit_is_reported(tmp_path: Path, exit_code: Any) -> None:
    facts = "    sampling_rate, output_dim, hop_size_in_ms = 16000, 8, 40"
    method = f"    def forward(self, audio):\n        sys.exit({exit_code!r})"
    (tmp_path / "gone.py").write_text(f"import sys, torch\nclass GoneEncoder(torch.nn.Module):\n{facts}\n{method}\n")
    code, said = call("encoder", "run", tmp_path / "gone.py", "--tasks", "esc50", "--data", tmp_path)
    assert code == 2
    assert said.count("\n") == 1
    assert "gone.py: the encoder cannot encode" in said


def test_gradients_that_an_encoder_switches_on_are_dropped_from_its_embeddings() -> None:
    def forward(features: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(True)
        return features * torch.ones(8, requires_grad=True)

    (embedding,), (plain,) = (from_module(variant(way)).encode(waves(1)[0]) for way in (forward, None))
    assert (embedding.requires_grad, torch.equal(embedding, plain)) == (False, True)


@pytest.mark.parametrize("fact", [{"sampling_rate": True}, {"hop_size_in_ms": float("inf")}, {"max_seconds": "1"}])
def test_encoder_attributes_that_are_not_numbers_are_refused(fact: dict[str, Any]) -> None:
    with pytest.raises(EncoderError, match=f"attribute {next(iter(fact))} must be a positive"):
        from_module(variant(**fact))


def test_an_encoder_that_states_more_frames_than_it_returns_is_refused() -> None:
    class LongEncoder(FrameEncoder):
        def forward(self, audio: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:
            features = super().forward(audio)
            return features if lengths is None else (features, lengths // 600)

    with pytest.raises(EncoderError, match=r"with frames \[26\]"):
        from_module(LongEncoder()).encode(waves(1)[0], [16000])


def test_weights_in_plain_attributes_of_an_encoder_are_part_of_its_identity() -> None:
    def linear(value: float) -> torch.nn.Linear:
        layer = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(layer.weight, value)
        torch.nn.init.zeros_(layer.bias)
        return layer

    for hold in (
        lambda value: torch.tensor([value]),
        lambda value: torch.tensor([value]).numpy(),
        lambda value: [linear(value)],
        lambda value: {"a": (torch.tensor([value]),)},
    ):
        identities = []
        for value in (1.0, 1.0, 2.0):
            encoder = FrameEncoder()
            encoder.held = hold(value)  # an attribute that torch does not register
            identities.append(from_module(encoder).identity)
        assert identities[0] == identities[1] != identities[2]
