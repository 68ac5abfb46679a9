"""The tasks of X-ARES, as data; find them by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from audiomarathon.errors import SettingsError
from audiomarathon.plugins import look_up
from audiomarathon.wings.encoders.xares.captioned import CaptionedTask
from audiomarathon.wings.encoders.xares.framed import FramedTask
from audiomarathon.wings.encoders.xares.graded import GradedTask
from audiomarathon.wings.encoders.xares.spoken import SpokenTask
from audiomarathon.wings.encoders.xares.task import EncoderTask, LabelRule, Recipe
from audiomarathon.wings.encoders.xares.task_config import TaskConfig, load_task_file, task_of

DOMAINS = ("speech", "environment", "music")


def _task(
    name: str, formal_name: str, title: str, domain: str, label: str | LabelRule, classes: int | str, weight: int,
    n_test: int, *, zenodo: str = "", splits: str = "", folds: Iterable[int] = (), tars: str = "", file: str = "",
    batch: int = 32, epochs: int = 10, crop: float | None = None, encode_batch: int = 16, knn: bool = True,
    kind: type[EncoderTask] = EncoderTask, **own: Any
) -> EncoderTask:  # fmt: skip
    """Return a task of X-ARES from its facts.

    `splits` names the tars of train, valid and test. `tars` is the pattern of a fold's tars. `file` is the name of
    X-ARES' own file of the task.
    """
    by_split = dict(zip(("train", "valid", "test"), (f"{one}*.tar" for one in splits.split()), strict=False))
    return kind(
        key=f"xares/{name}",
        aliases=(name, formal_name, file or name),
        formal_name=formal_name,
        title=title,
        domain=domain,
        zenodo=zenodo,
        globs={str(k): tars.format(k) for k in folds} or by_split,
        folds=bool(folds),
        label=label,
        classes=classes if isinstance(classes, int) else frozenset(classes.split("|")),
        recipe=Recipe(batch, epochs, 1e-3, crop, encode_batch, knn, weight),
        n_test=n_test,
        **own,
    )


def _gender(meta: Any) -> str:
    return "M" if meta["gender"] == "M" else "F"


def _broadcast(meta: Any) -> str:
    return str(int(meta["broadcasting"]))


_WDS = "wds-audio-train wds-audio-valid wds-audio-test"
_LIBRISPEECH = "train-clean-100 dev-clean test-clean"
_ESC50 = "|".join(map(str, range(50)))
_COUNTS = "|".join(map(str, range(11)))
_GENRES = "Hip-Hop|Pop|Folk|Experimental|Rock|International|Electronic|Instrumental"
_GTZAN = "blues|classical|country|disco|hiphop|jazz|metal|pop|reggae|rock"
_INSTRUMENTS = "guitar|bass|organ|keyboard|vocal|string|reed|flute|mallet|brass|synth_lead"
_EMOTIONS = "neutral|calm|happy|sad|angry|fearful|disgust|surprised"
_COMMANDS = (
    "sheila|up|bird|right|left|six|yes|on|one|off|zero|marvin|seven|wow|five|down|three|nine|no|happy|cat|go|bed|house|"
    "stop|four|tree|dog|two|eight"
)
_STREET = (
    "air_conditioner|car_horn|children_playing|dog_bark|drilling|engine_idling|gun_shot|jackhammer|siren|street_music"
)
_HOME = (
    "Cat|Speech|Running_water|Dishes|Electric_shaver_toothbrush|Vacuum_cleaner|Blender|Alarm_bell_ringing|Dog|Frying"
)
_NOTES = "|".join(map(str, range(21, 109)))  # notes of a piano; X-ARES has no class for 108
_VOCAL = "laughter|sigh|throatclearing|cough|sneeze|sniff"
_LANGUAGES = "uk|zh|nn|hr|nl|fa|el|sv|hy|pl|hu|mk|is|pt|sl|ar|en|lv|ru|az|no|lt|es|tr|fr|de|et|ur|da|fi|it|ja|sr"
_SPEAKER = ("speaker", "speakerid", "speakerId", "speaker_id")

TASKS: tuple[EncoderTask, ...] = (
    _task("asvspoof2015", "ASV2015", "Spoofed speech detection", "speech", "binary_spoof", "human|spoof", 2000,
          190_948, zenodo="14718430", splits="asvspoof_train asvspoof_valid asvspoof_eval", file="asvspoof", batch=64,
          epochs=5, cluster=r"(?:^|/)([TDE]\d+)_", cluster_fields=_SPEAKER, mini={"train":
          "asvspoof_train_0000000.tar", "valid": "asvspoof_valid_0000000.tar", "test": "asvspoof_eval_0000000.tar"}),
    _task("clotho", "Clotho", "Retrieval of audio and captions", "environment", "", 0, 1045, 1045, zenodo="14856454",
          splits="clotho_development clotho_evaluation clotho_validation", batch=128, epochs=20, crop=30, knn=False,
          kind=CaptionedTask, swapped=True),
    _task("cremad", "CREMA-D", "Speech emotion recognition", "speech", "label", "H|S|A|F|D|N", 1116, 1116,
          zenodo="14646870", splits=_WDS, file="crema_d", cluster=r"(?:^|/)(\d{4})"),
    _task("desed", "DESED", "Sound event detection", "environment", "", _HOME, 1153, 1153, zenodo="14808180",
          splits="wds-audio-train wds-audio-eval wds-audio-eval", knn=False, kind=FramedTask, average="macro",
          fields=("onset", "offset", "label"), segment=1.0, until=10.0),
    _task("esc50", "ESC-50", "Environmental sound classification", "environment", "label", _ESC50, 400, 400,
          zenodo="14614287", folds=range(1, 6), tars="wds-audio-fold-{}-*.tar", cluster=r"(?:^|/)\d+-(\d+)-"),
    _task("fluentspeechcommands", "Fluent Speech Commands", "Spoken command recognition", "speech", "transcription",
          248, 2000, 3793, zenodo="14722453",
          splits="fluentspeechcommands_train fluentspeechcommands_valid fluentspeechcommands_test",
          file="fluentspeechcommands_kws", encode_batch=1, cluster_fields=_SPEAKER),
    _task("freemusicarchive", "Free Music Archive Small", "Music genre classification", "music", "genre", _GENRES,
          800, 800, zenodo="14725056", splits="fma_small_train fma_small_valid fma_small_test",
          file="freemusicarchive_genre", epochs=3, crop=10, cluster_fields=("artist",)),
    _task("fsd50k", "FSD50k", "Sound event tagging", "environment", "soundevent", 200, 2000, 10_231,
          zenodo="14868441", splits="fsd50k_train fsd50k_validation fsd50k_eval", multi_label=True, batch=64, crop=10,
          knn=False),
    _task("fsdkaggle2018", "FSD18-Kaggle", "Sound event classification", "environment", "sound", 41, 1600, 1600,
          zenodo="14725117", splits="fsd18_train fsd18_test fsd18_test", batch=64, epochs=3, knn=False),
    _task("gtzan_genre", "GTZAN Genre", "Music genre classification", "music", "genre", _GTZAN, 100, 100,
          zenodo="14722472", folds=range(10), tars="gtzan_fold_{}_0000000.tar", file="gtzan"),
    _task("libricount", "LibriCount", "Speaker counting", "speech", "num_speakers", _COUNTS, 1144, 1144,
          zenodo="14722478", folds=range(5), tars="libricount_fold{:02d}.tar", batch=64),
    _task("librispeech", "LibriSpeech-100h", "Speech recognition", "speech", "", 0, 10_000, 2620, zenodo="14716252",
          splits=_LIBRISPEECH, file="librispeech_asr", batch=4, knn=False, kind=SpokenTask, cluster=r"(?:^|/)(\d+)",
          mini={"train": "train-clean-100-000000.tar"}),
    _task("librispeechmalefemale", "LibriSpeech-MF", "Speaker gender classification", "speech", _gender, "M|F", 2620,
          2620, zenodo="14716252", splits=_LIBRISPEECH, file="librispeech_male_female", crop=5,
          cluster=r"(?:^|/)(\d+)", mini={"train": "train-clean-100-000000.tar"}),
    _task("maestro", "MAESTRO", "Note transcription", "music", "", _NOTES, 65, 65, zenodo="14858022",
          splits="maestro_train maestro_valid maestro_test", batch=1, epochs=50, encode_batch=1, knn=False,
          kind=FramedTask, average="micro", fields=("start", "end", "note"), segment=0.1, pos_weight=10.0, onset=0.05,
          unreleased=frozenset({"108"}), exact=False),
    _task("nsynthinstument", "NSynth-Instruments", "Instrument classification", "music", "instrument_family_str",
          _INSTRUMENTS, 2000, 4096, zenodo="14725174", splits="nsynth_train nsynth_valid nsynth_test",
          file="nsynth_instument", mini={"train": "nsynth_train_sub55k_0000000.tar", "valid":
          "nsynth_valid_0000001.tar"}),
    _task("ravdess", "RAVDESS", "Speech emotion recognition", "speech", "emotion", _EMOTIONS, 360, 360,
          zenodo="14722524", folds=range(4), tars="ravdess_fold_{}_0000000.tar", cluster=r"(?:^|/)(?:\d+-){6}(\d+)$"),
    _task("speechocean762", "speechocean762", "Pronunciation scoring", "speech", "", 0, 0, 2500, zenodo="14725291",
          splits="speechocean762_train speechocean762_test speechocean762_test", epochs=25, encode_batch=1, knn=False,
          kind=GradedTask, grades=("accuracy", "fluency", "prosodic", "completeness", "total"),
          cluster_fields=_SPEAKER, in_release=False),
    _task("speechcommandsv1", "Speech Commands V1", "Spoken command recognition", "speech", "labels", _COMMANDS, 2000,
          6835, zenodo="14722647", splits=_WDS, batch=64, cluster="([0-9a-f]+)_nohash_"),
    _task("urbansound8k", "UrbanSound 8k", "Urban sound classification", "environment", "soundevent", _STREET, 873,
          873, zenodo="14722683", folds=range(1, 11), tars="urbansound_fold{}_0000000.tar", cluster=r"(?:^|/)(\d+)-"),
    _task("vocalimitations", "Vocal Imitation", "Imitated sound classification", "environment", "imitation", 302,
          1867, 1867, zenodo="14862060", folds=range(3), tars="vocal_imitations_fold{:02}_0000000.tar", epochs=20,
          encode_batch=1, cluster_fields=(*_SPEAKER, "reference")),
    _task("vocalsound", "VocalSound", "Non-speech vocal sound classification", "speech", "label", _VOCAL, 2000, 3594,
          zenodo="14722710", splits="train valid test", cluster=r"(?:^|/)([fm]\d+)_"),
    _task("voxceleb1", "VoxCeleb1", "Speaker identification", "speech", "speakerid", 1251, 2000, 8251,
          zenodo="14811963", splits="voxceleb1_train voxceleb1_valid voxceleb1_test", crop=6,
          cluster=r"id\d+[/_-]([\w-]{11})[/_-]\d", cluster_fields=("video", "videoid", "video_id", "youtube_id"),
          mini={"train": "voxceleb1_train_00000{00..02}.tar"}),
    _task("voxlingua33", "VoxLingua33", "Spoken language identification", "speech", "labels", _LANGUAGES, 1609, 1609,
          zenodo="14812245", splits="train_subset dev dev", batch=64, crop=10, cluster="(?:^|/)([^/]+?)__",
          mini={"train": "train_subset_2k_00000{00..01}.tar"}),
    _task("finger_snap", "Finger snap sound", "Finger snap detection", "environment", "tag", "T|F", 5000, 0,
          splits="finger_snap_train finger_snap_test finger_snap_test", epochs=20, private=True, disabled=True),
    _task("key_scratching", "Key scratching car", "Key scratch detection", "environment", "tag", "T|F", 5000, 0,
          splits="key_scratching_train key_scratching_test key_scratching_test", epochs=20, private=True,
          disabled=True),
    _task("inside_outside_car", "Inside/outside car", "Inside or outside a car", "environment", "position",
          "Inside|Outside", 5000, 0, epochs=20, private=True,
          splits="inside_outside_car_train inside_outside_car_test inside_outside_car_test"),
    _task("liveenv", "liveenv", "Environment classification", "environment", "soundevent", 28, 5000, 0, epochs=50,
          splits="liveenv_train liveenv_test liveenv_test", knn=False, private=True, disabled=True),
    _task("subway_broadcast", "Subway broadcast", "Subway announcement detection", "environment", _broadcast, "0|1",
          5000, 0, splits="subway_broadcast subway_broadcast subway_broadcast", epochs=20, private=True),
)  # fmt: skip


def named(names: Sequence[str], encoder: Any = None) -> list[EncoderTask]:
    """Return the encoder tasks with these names.

    A name is a task's key, name, formal name or file name in X-ARES; a domain; "private"; "all" (all public tasks); or
    the path of a user's task file. The functions in such a file get the encoder, since labels of frames depend on the
    encoder's hop (the time between frames).

    Raises
    ------
    SettingsError
        The task does not exist.
    """
    found: list[EncoderTask] = []
    for name in names:
        word = name.strip().lower().removeprefix("xares/")
        if word.endswith(".py") and Path(name).is_file():
            found.append(task_of(config_in(Path(name), encoder)))
        elif word == "private":
            found += [task for task in TASKS if task.private]
        elif word in ("all", *DOMAINS):
            found += [task for task in TASKS if not task.private and word in ("all", task.domain)]
        elif word.endswith(".py") and word.removesuffix(".py").removesuffix("_task") not in _known():
            raise SettingsError(f"{name}: no such file or task; see `audiomarathon encoder list tasks`")
        else:
            found.append(_one(word.removesuffix(".py").removesuffix("_task")))
    return list({task.key: task for task in found}.values())


def equipped(task: EncoderTask, *, llm: str = "", tokenizer: str = "") -> EncoderTask:
    """Return the task with a causal LM or a tokenizer set, if it uses one.

    The names are given as arguments, or in $XARES_LLM and $XARES_TOKENIZER.
    """
    llm, tokenizer = llm or os.environ.get("XARES_LLM", ""), tokenizer or os.environ.get("XARES_TOKENIZER", "")
    if isinstance(task, SpokenTask) and llm:
        return replace(task, llm=llm)
    return replace(task, tokenizer=tokenizer) if isinstance(task, CaptionedTask) and tokenizer else task


def _known() -> set[str]:
    return {name.lower() for task in TASKS for name in (task.name, *task.aliases)}


def _one(word: str) -> EncoderTask:
    return look_up(word, TASKS, kind="encoder task")


def config_in(file: Path, encoder: Any = None) -> TaskConfig:
    """Return the configuration in a task file; if it is one of X-ARES' own files, `released` is set to our task.

    X-ARES' own file is recognised by the task's name, Zenodo record and tars, and by whether it has a label processor.
    """
    config = load_task_file(file, encoder)
    ours = next(
        (task for task in TASKS if task.name == config.name and (task.zenodo or None) == config.zenodo_id), None
    )
    tars = {str(tar) for tar in config.audio_tar_name_of_split.values()}
    if ours and tars == {*ours.globs.values()} and bool(config.label_processor) == ours.labelled:
        config.released, config.label_processor, config.merge_processor = ours, None, None
    return config


def config_of(name: str, encoder: Any = None) -> TaskConfig:
    """Return the configuration that X-ARES has for a released task."""
    task, recipe = _one(name), _one(name).recipe
    roles = {} if task.folds else {f"{role}_split": glob.removesuffix("*.tar") for role, glob in task.globs.items()}
    task_type, criterion, metric = task.trained_as
    config = TaskConfig(
        name=task.name, task_type=task_type, criterion=criterion, metric=metric, formal_name=task.formal_name,
        encoder=encoder, private=task.private, disabled=task.disabled,
        zenodo_id=task.zenodo or None, eval_weight=recipe.weight, batch_size_train=recipe.batch, epochs=recipe.epochs,
        learning_rate=recipe.lr, crop_length=recipe.crop, batch_size_encode=recipe.encode_batch, do_knn=recipe.knn,
        output_dim=task.classes if isinstance(task.classes, int) else len(task.classes),
        k_fold_splits=[int(fold) for fold in task.globs] if task.folds else None,
        released=task, **roles,
    )  # fmt: skip
    if isinstance(task, FramedTask):
        from torch import nn, tensor

        config.metric_args = {"segment_length_in_s": task.segment}
        config.criterion = nn.BCEWithLogitsLoss(pos_weight=tensor(task.pos_weight))
    if task.folds:
        config.audio_tar_name_of_split = {int(fold): glob for fold, glob in task.globs.items()}
    return config
