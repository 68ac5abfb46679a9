"""The table of the classes that read raw corpora, one for each task."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audiomarathon.segment.corpus import Corpus

#: {task's key: (module, class) that reads its raw corpus}.
CORPORA = {
    "tau": ("tau", "TauCorpus"),
    "gtzan": ("gtzan", "GtzanCorpus"),
    "had": ("had", "HadCorpus"),
    "vox": ("voxceleb", "VoxCorpus"),
    "vox_age": ("voxceleb", "VoxAgeCorpus"),
    "librispeech": ("librispeech", "LibriSpeechCorpus"),
    "vesus": ("vesus", "VesusCorpus"),
    "desed": ("desed", "DesedCorpus"),
    "slue": ("slue", "SlueCorpus"),
    "race": ("race", "RaceCorpus"),
}


def corpus_class(task: str) -> type[Corpus]:
    """Return the class that reads the raw corpus from which a task is built."""
    module, name = CORPORA[task]
    corpus: type[Corpus] = getattr(import_module(f"{__package__}.corpora.{module}"), name)
    return corpus
