"""Write runs as a dataset folder for the Hugging Face hub: README.md, and the tables of runs and samples as parquet."""

from __future__ import annotations

import io
from pathlib import Path

import yaml

from audiomarathon.benchmarks.rows import need_pyarrow
from audiomarathon.report.notebook import Runs
from audiomarathon.report.page_data import scores_table
from audiomarathon.report.paper import typed
from audiomarathon.report.render import markdown
from audiomarathon.version import __version__


def dataset_files(runs: Runs) -> dict[str, bytes]:
    """Return the files of a dataset folder for the Hugging Face hub, as {file name: bytes}.

    Raises
    ------
    SettingsError
        pyarrow is not installed.
    RecordError
        A run is not finished.
    """
    need_pyarrow()
    for run in runs.data.runs:
        run.check_finished()
    of_runs = runs.summaries.drop(columns="folder", errors="ignore")  # left out, since it is a path on this machine
    files, configs = dict[str, bytes](), []
    for name, frame in {"records": runs.records, "summaries": typed(of_runs)}.items():
        frame.to_parquet(out := io.BytesIO(), index=False)
        files[f"{name}.parquet"] = out.getvalue()
        configs.append({"config_name": name, "data_files": f"{name}.parquet"})
    facts = {"pretty_name": "AudioMarathon results", "tags": ["audiomarathon", "audio"], "configs": configs}
    text = (Path(__file__).parent / "texts" / "card.md").read_text(encoding="utf-8")
    scores = markdown(scores_table(runs.data))
    card = text.format(facts=yaml.safe_dump(facts, sort_keys=False), version=__version__, scores=scores)
    return {**files, "README.md": card.encode("utf-8", "backslashreplace")}
