"""AudioMarathon's own benchmark (arXiv 2510.07293): ten tasks on audio of 90 to 300 seconds."""

from __future__ import annotations

from audiomarathon.benchmarks.audiomarathon.desed import Desed
from audiomarathon.benchmarks.audiomarathon.gtzan import Gtzan
from audiomarathon.benchmarks.audiomarathon.had import Had
from audiomarathon.benchmarks.audiomarathon.librispeech import LibriSpeech
from audiomarathon.benchmarks.audiomarathon.published import ROW_OF, SCORES
from audiomarathon.benchmarks.audiomarathon.race import Race
from audiomarathon.benchmarks.audiomarathon.slue import Slue
from audiomarathon.benchmarks.audiomarathon.tau import Tau
from audiomarathon.benchmarks.audiomarathon.vesus import Vesus
from audiomarathon.benchmarks.audiomarathon.vox import Vox
from audiomarathon.benchmarks.audiomarathon.vox_age import VoxAge
from audiomarathon.benchmarks.benchmark import Benchmark, TaskFacts

#: What the paper states about each task: acronym, group, number of samples, shortest and longest clip in seconds.
_FACTS = {
    "librispeech": TaskFacts("ASR", "speech content", 204, (60.0, 240.0)),
    "race": TaskFacts("SCR", "speech content", 820, (120.0, 252.0)),
    "slue": TaskFacts("SER", "speech content", 490, (165.0, 300.0)),
    "tau": TaskFacts("ASC", "audio classification", 1145, (90.0, 210.0)),
    "gtzan": TaskFacts("MC", "audio classification", 120, (240.0, 240.0)),
    "desed": TaskFacts("SED", "audio classification", 254, (270.0, 300.0)),
    "vesus": TaskFacts("ER", "speaker", 185, (90.0, 120.0)),
    "had": TaskFacts("SD", "speaker", 776, (180.0, 300.0)),
    "vox": TaskFacts("SGR", "speaker", 1614, (90.0, 210.0)),
    "vox_age": TaskFacts("SAR", "speaker", 959, (90.0, 300.0)),  # not published; the range of all ten tasks
}

AUDIOMARATHON = Benchmark(
    key="audiomarathon",
    title="Ten tasks on audio of 90 to 300 seconds",
    tasks=(LibriSpeech(), Race(), Slue(), Tau(), Gtzan(), Desed(), Vesus(), Had(), Vox(), VoxAge()),
    facts=_FACTS,
    published=SCORES,
    models=ROW_OF,
    licence="CC-BY-NC-4.0",
)
