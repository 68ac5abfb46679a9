"""`audiomarathon demo`: run the suite on a tiny model and synthetic audio, on any machine."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Annotated

from audiomarathon.cli.options import option
from audiomarathon.cli.output import say, show
from audiomarathon.errors import AudioMarathonError
from audiomarathon.files import writing
from audiomarathon.settings import RunSettings, cache_folder


def demo(
    results: Annotated[Path, option("Results folder.")] = Path("demo_results"),
    limit: Annotated[int, option("Samples per task; 0 = all of the mini benchmark.")] = 6,
) -> int:
    """Run the whole suite offline: ten tasks of synthetic long audio, a tiny embedded model, three settings."""
    import shlex

    from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
    from audiomarathon.compression.registry import get_method
    from audiomarathon.embedded.mini_benchmark import mini_benchmark
    from audiomarathon.engine.run import run
    from audiomarathon.report.charts import library
    from audiomarathon.report.pictures import plot_settings

    try:
        library("vl_convert")
    except AudioMarathonError as error:
        say(f"no picture will be drawn: {error}")
    with writing(cache_folder()):
        data = mini_benchmark()
    say(f"mini benchmark: {data}")
    here = results / datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    # The longest transcript has 20 words; without a limit, a tiny model might repeat itself for minutes.
    settings = RunSettings.read({}, data=str(data), results=here, limit=limit, max_new_tokens=64)
    # At the input the model has not read the tokens yet, so a dropped event is lost. At layer 2 it has read them.
    methods = [get_method("base"), get_method("frame", 0.5, at="input"), get_method("random", 0.9, at="input")]
    finished = list(run(AUDIOMARATHON.tasks, "embedded", settings, methods, say=say))
    title = "AudioMarathon demo: embedded tiny model, synthetic audio of 90–120 s"
    code = show(finished, title, folders=False)
    say("librispeech's score is 1 - word error rate: the toy gets few words of a long clip right, with base too")
    say(f"with n = {limit or 'a few'} a task one reply moves a score far: frame above base is chance (see intervals)")
    try:
        picture = plot_settings(
            [result.folder for result in finished], here / "demo.png", f"{title}, n = {limit} a task"
        )
        say(f"picture: {picture}")
    except AudioMarathonError as error:  # the records are saved, only the picture is missing
        say(f"no picture: {error}")
    say(f"records of all runs: {here}")
    prefix = Path(sys.prefix)
    if prefix != Path(sys.base_prefix):
        say(f"to use this environment: source {shlex.quote(str(prefix / 'bin' / 'activate'))}")
    return code
