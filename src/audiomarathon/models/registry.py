"""The table of models: each model's name, its default checkpoint, and its family (the class that runs it).

Another package adds a model by an entry point in the group `audiomarathon.models` that names a :class:`ModelSpec`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from audiomarathon.errors import ANY_ERROR, ModelError, SettingsError, told
from audiomarathon.plugins import look_up, plugins

if TYPE_CHECKING:
    from audiomarathon.models.audio_lm import AudioLM

EMBEDDED = "embedded"
"""Name of the checkpoint that ships with this package."""


@dataclass(frozen=True)
class ModelSpec:
    """A row of the table of models.

    Attributes
    ----------
    key
        The name by which users select the model.
    family
        `module:class` of the :class:`~audiomarathon.models.audio_lm.AudioLM` that runs the model; imported on use.
    checkpoint
        Default checkpoint: a hub id, or :data:`EMBEDDED`.
    tokens_per_second
        Number of audio tokens per second of audio in the LLM's prompt.
    folder
        The repository's folder with this model's scripts, or "".
    download_gb
        Approximate size of the download in GB; 0 if there is no download.
    variant
        Label in results folders that keeps two models with the same checkpoint apart.
    most_seconds
        Longest allowed clip in seconds; 0 for any length.
    heard_seconds
        Seconds after which the model cuts a clip off; 0 if it takes whole clips.
    remote
        Whether the model runs behind an endpoint. Then `family` is the client, and there is no checkpoint.
    """

    key: str
    family: str
    checkpoint: str
    tokens_per_second: float
    title: str
    aliases: tuple[str, ...] = ()
    folder: str = ""
    download_gb: float = 0.0
    variant: str = ""
    most_seconds: float = 0.0
    heard_seconds: float = 0.0
    remote: bool = False

    def load_family(self) -> type[AudioLM]:
        """Import and return the family's class."""
        module, _, name = self.family.partition(":")
        try:
            family: type[AudioLM] = getattr(importlib.import_module(module), name)
        except ANY_ERROR as error:  # a plug-in's module may raise anything
            raise ModelError(f"{self.key}: its family {self.family!r} cannot be imported: {told(error)}") from error
        return family


_QWEN2_5_OMNI = "audiomarathon.models.qwen2_5_omni:Qwen2_5Omni"
_VOXTRAL = "audiomarathon.models.voxtral:Voxtral"
_WHISPER = "audiomarathon.models.whisper:Whisper"
_GEMMA3N = "audiomarathon.models.gemma3n:Gemma3n"

#: Each model's name, family, default checkpoint, audio tokens per second, title and other facts.
BUILT_IN = (
    ModelSpec("embedded", _QWEN2_5_OMNI, EMBEDDED, 25,
        "tiny Qwen2.5-Omni thinker trained on a synthetic world; ships with the package"),
    ModelSpec("qwen2.5-omni-7b", _QWEN2_5_OMNI, "Qwen/Qwen2.5-Omni-7B", 25, "Qwen2.5-Omni 7B, thinker only",
        aliases=("qwen2.5-omni",), folder="Qwen_2.5_Omni", download_gb=22.4),
    ModelSpec("qwen2.5-omni-3b", _QWEN2_5_OMNI, "Qwen/Qwen2.5-Omni-3B", 25, "Qwen2.5-Omni 3B, thinker only",
        folder="Qwen_2.5_Omni", download_gb=12.1),
    ModelSpec("phi4mm", "audiomarathon.models.phi4mm:Phi4MM", "microsoft/Phi-4-multimodal-instruct@refs/pr/70", 12.5,
        "Phi-4-multimodal with its speech adapter", aliases=("phi-4-multimodal", "phi4-mm"), folder="Phi4MM",
        download_gb=10.4),
    ModelSpec("voxtral", _VOXTRAL, "mistralai/Voxtral-Mini-3B-2507", 12.5, "Voxtral Mini 3B",
        aliases=("voxtral-mini",), folder="Voxtral", download_gb=9.4),
    ModelSpec("voxtral-small", _VOXTRAL, "mistralai/Voxtral-Small-24B-2507", 12.5, "Voxtral Small 24B",
        folder="Voxtral", download_gb=48.5),
    ModelSpec("aero-1", "audiomarathon.models.aero:Aero", "lmms-lab/Aero-1-Audio", 25, "Aero-1-Audio 1.5B",
        aliases=("aero",), folder="Aero-1", download_gb=4.4),
    ModelSpec("qwen2-audio", "audiomarathon.models.qwen2_audio:Qwen2Audio", "Qwen/Qwen2-Audio-7B-Instruct", 25,
        "Qwen2-Audio 7B, whole clips", download_gb=16.8),
    ModelSpec("qwen2-audio-30s", "audiomarathon.models.qwen2_audio:Qwen2AudioFirst30", "Qwen/Qwen2-Audio-7B-Instruct",
        25, "Qwen2-Audio 7B as published: the first 30 s of each clip, marked truncated", download_gb=16.8,
        variant="30s", heard_seconds=30),
    ModelSpec("qwen3-omni", "audiomarathon.models.qwen3_omni:Qwen3Omni", "Qwen/Qwen3-Omni-30B-A3B-Instruct", 13,
        "Qwen3-Omni 30B-A3B, thinker only", download_gb=70.5),
    ModelSpec("gemma3n", _GEMMA3N, "google/gemma-3n-E4B-it", 6.25, "Gemma 3n E4B, without its vision tower",
        aliases=("gemma3n-e4b", "gemma-3n"), download_gb=15.7),
    ModelSpec("gemma3n-e2b", _GEMMA3N, "google/gemma-3n-E2B-it", 6.25, "Gemma 3n E2B, without its vision tower",
        download_gb=10.9),
    ModelSpec("audio-flamingo-3", "audiomarathon.models.audio_flamingo_3:AudioFlamingo3",
        "nvidia/audio-flamingo-3-hf", 25, "Audio Flamingo 3, 8B; clips of up to ten minutes", aliases=("af3",),
        download_gb=16.6, most_seconds=600),
    ModelSpec("whisper-large-v3", _WHISPER, "openai/whisper-large-v3", 50, "Whisper large-v3: transcripts only",
        aliases=("whisper",), download_gb=3.1),
    ModelSpec("whisper-large-v3-turbo", _WHISPER, "openai/whisper-large-v3-turbo", 50, "Whisper large-v3-turbo",
        aliases=("whisper-turbo",), download_gb=1.6),
    ModelSpec("whisper-small", _WHISPER, "openai/whisper-small", 50, "Whisper small", download_gb=1.0),
    ModelSpec("whisper-base", _WHISPER, "openai/whisper-base", 50, "Whisper base: runs on a laptop", download_gb=0.3),
    ModelSpec("openai", "audiomarathon.endpoint.client:Endpoint", "any OpenAI-compatible endpoint", 0,
        "a model behind an endpoint: OPENAI_BASE_URL, OPENAI_API_KEY, and --model-path for its name", remote=True),
)  # fmt: skip


#: Any text LLM; `audiomarathon cascade` runs it on transcripts. A second of speech takes about four tokens.
TEXT_LLM = ModelSpec("text-llm", "audiomarathon.models.text_llm:TextLLM", "the folder or hub id of --model-path", 4,
    "any causal LM with a chat template, which reads transcripts: audiomarathon cascade")  # fmt: skip


def all_models() -> tuple[ModelSpec, ...]:
    """Return every known model: first the built-in models, then those of plug-ins."""
    return (*BUILT_IN, *plugins("audiomarathon.models", ModelSpec, BUILT_IN))


def get_model(name: str) -> ModelSpec:
    """Return the model whose key or alias is `name`, ignoring case.

    Raises
    ------
    SettingsError
        There is no such model; the message suggests the nearest name, or lists all names.
    """
    return look_up(name, (*all_models(), *[TEXT_LLM] * (name.lower() == TEXT_LLM.key)), kind="model")


def get_local_model(name: str) -> ModelSpec:
    """Return the model whose key or alias is `name`, which must not run behind an endpoint.

    Raises
    ------
    SettingsError
        There is no such model, or it runs behind an endpoint.
    """
    spec = get_model(name)
    if spec.remote:
        use = "use it with `audiomarathon run`, which takes several tasks"
        raise SettingsError(f"{spec.key}: this model runs behind an endpoint and shows only its replies; {use}")
    return spec
