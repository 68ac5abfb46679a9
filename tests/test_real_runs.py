"""End-to-end runs on real recordings of 90 s and more, with the folders and scripts that users have."""

from __future__ import annotations

from pathlib import Path

import pytest
import real_recordings
from builders import records_in

from audiomarathon.compression.registry import get_method
from audiomarathon.engine.run import run
from audiomarathon.settings import RunSettings

LONG = pytest.mark.long
REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_recordings.build_all(tmp_path_factory.mktemp("real"))


@pytest.mark.parametrize("task", ["tau", *(pytest.param(name, marks=LONG) for name in ("librispeech", "gtzan"))])
def test_long_real_audio_is_run_from_data_folder_to_summary(
    task: str, root: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    if task == "librispeech":
        real_recordings.chapters()  # skips where there are none
    flags = {"data": str(root), "model_path": str(tiny_checkpoint), "results": tmp_path, "max_new_tokens": 3}
    methods = [get_method("base"), get_method("frame", 0.5)]
    base, frame = run([task], "qwen2.5-omni", RunSettings.read({}, **flags), methods, progress=False)
    for result in (base, frame):
        assert result.summary["complete"] is True
        for record in records_in(result.folder):
            assert record["clip_seconds"] >= (25 if record["cluster"] == "2" else 90)
            assert record["audio_tokens"] == pytest.approx(25 * record["clip_seconds"], abs=1)
            assert record["truncated"] is False
    assert frame.summary["kept_audio_tokens"] == pytest.approx(base.summary["kept_audio_tokens"] / 2, abs=1)
    assert frame.summary["kv_bytes"] < 0.8 * base.summary["kv_bytes"]
    (batched,) = run(
        [task],
        "qwen2.5-omni",
        RunSettings.read({}, **flags | {"results": tmp_path / "batched", "timing": False, "batch_size": 2}),
        methods[:1],
        progress=False,
    )
    assert batched.summary["score"] == base.summary["score"]
