"""The example's rows become samples and prompts, and replies to them are scored."""

from pathlib import Path

from audiomarathon.benchmarks import get_task
from audiomarathon.records import Record
from audiomarathon.scoring.scorer import figures_of

EXAMPLE = Path(__file__).parent.parent / "example"


def test_the_example_is_read_and_scored() -> None:
    task = get_task("newname")  # by name: the package has to be installed
    loaded = task.load(task.find(EXAMPLE))
    assert not loaded.bad_rows
    assert {sample.right for sample in loaded.samples} == {"A. High", "B. Low"}
    assert task.prompt(loaded.samples[0]).startswith("Is the tone high or low?\n\nA. High\nB. Low")
    records = [
        Record(sample.id, sample.cluster, reply="A", reference=task.reference(sample)) for sample in loaded.samples
    ]
    figures = figures_of(task.scorer, list(task.scorer.verdicts(records)), seed=1)
    assert figures["accuracy"] == 0.5
