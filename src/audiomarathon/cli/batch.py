"""Run a sweep with the options that `batch_test.sh` had in the first release.

The shell files in the model folders only pass their folder's name; everything else is here and in `cli/sweep.py`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from audiomarathon.cli.command import run_script, with_options
from audiomarathon.cli.options import PlanRuns, argument, option
from audiomarathon.cli.output import say
from audiomarathon.cli.sweep import DEFAULT_METHOD, run_sweep
from audiomarathon.engine.ray_options import read_executor
from audiomarathon.errors import SettingsError
from audiomarathon.models.registry import all_models
from audiomarathon.settings import RunSettings

#: Folder whose `batch_test.sh` runs the KV presses. It has no model.
PRESSES = "kvpress"
_DEFAULT_MODEL = "qwen2.5-omni"
_FLAGS = {"--limit": "--sample-limit", "--layer": "--pruned-layer", "--results": "--output-dir"}  # in `run`: here

_EXAMPLES = """
\b
examples:
  ./batch_test.sh                                    all ten tasks, base and nine ratios
  ./batch_test.sh -s 100 -r 0.5 -m fast_v,dart TAU GTZAN
  ./batch_test.sh -g 1 -r 0.0,0.3,0.6 -o out HAD      0.0 is base
  ./batch_test.sh -g 0,1,2,3 TAU                      one worker per GPU (needs Ray)
  ./batch_test.sh --plan                              print the expected hours and memory, and stop

Tasks are DESED GTZAN HAD LibriSpeech RACE SLUE TAU VESUS Vox Vox_age, in upper or lower case; default all ten. JASCO,
Clotho, AudioCaps and MMAU_Pro run if you name them. All settings of a task run side by side on each sample. The same
command resumes an interrupted batch. A task that fails does not stop the others. Set all other settings by env vars
(docs/reference.md): AUDIOMARATHON_DATA, MODEL_PATH, ...

It writes <output>/logs/<task>.log, <output>/summary.txt, .csv and .json, and records under <output>/<task>/.
Exit code: 0 success, 1 a task or a sample failed, 2 wrong command.
"""


def batch(folder: str, arguments: Sequence[str]) -> None:
    """Do the work of the `batch_test.sh` in a model's folder; tasks and options may come in any order.

    If the sweep's exit code is not 0, exit with it.
    """
    methods = "all presses" if folder == PRESSES else DEFAULT_METHOD
    about = (
        f"Run tasks at many pruning ratios ({folder}) and summarise accuracy and timing. Defaults: methods {methods}, "
        f"results in ./{folder}_Results."
    )
    command = with_options(_batch, (), functools.partial(_batch, folder), but="folder")
    run_script(command, arguments, name="batch_test.sh", help=about, epilog=_EXAMPLES)


def _batch(
    folder: str,
    tasks: Annotated[list[str] | None, argument("Tasks (default: all ten).")] = None,
    gpu_id: Annotated[
        str | None, option("GPUs to use, such as 0,1,2 [env: CUDA_VISIBLE_DEVICES; default: 0].", "--gpu-id", "-g")
    ] = None,
    sample_limit: Annotated[
        str | None, option("Samples per task; 0 = all [env: SAMPLE_LIMIT].", "--sample-limit", "-s")
    ] = None,
    pruned_layer: Annotated[
        str | None,
        option("Layer at which tokens are dropped [env: PRUNE_LAYER_IDX; default: 2].", "--pruned-layer", "-l"),
    ] = None,
    ratios: Annotated[
        str | None,
        option(
            "Fractions to remove: 0.5, a list 0.1,0.5 or first:last:step (default: 0.1:0.9:0.1; with PRUNE_SCHEDULE "
            "its last).",
            "--ratios",
            "-r",
        ),
    ] = None,
    methods: Annotated[
        str | None, option("Methods joined by commas, or all [env: PRUNE_METHOD].", "--methods", "-m")
    ] = None,
    output_dir: Annotated[str | None, option("Results folder [env: RESULTS_DIR].", "--output-dir", "-o")] = None,
    model: Annotated[str | None, option("Model (default: this folder's); set its checkpoint with MODEL_PATH.")] = None,
    no_base: Annotated[bool, option("Do not run base. Without base, savings cannot be measured.", "--no-base")] = False,
    plan: PlanRuns = False,
) -> int:
    gpus = _gpus(gpu_id)
    if gpus and not plan and not _has_gpu():
        say(f"--gpu-id={gpu_id}: this machine has no GPU, so the sweep runs on the CPU")
        gpus = []
    if gpus:  # set before CUDA is first used
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    usual = {"results": f"{folder}_Results"}
    try:
        settings = RunSettings.read(file=usual, limit=sample_limit, layer=pruned_layer, results=output_dir)
    except SettingsError as error:
        flag, equals, rest = str(error).partition("=")
        raise SettingsError(f"{_FLAGS.get(flag, flag)}{equals}{rest}") from None
    if gpus and settings.device != "cpu" and not plan:  # --plan also works on a machine without GPUs
        _check_seen(gpus)
    methods = methods or os.environ.get("PRUNE_METHOD") or (_all_presses() if folder == PRESSES else DEFAULT_METHOD)
    chosen, model = tasks or ["all"], model or _model_of(folder)
    ray = read_executor("ray", workers=len(gpus)) if len(gpus) > 1 else None
    return run_sweep(chosen, model, settings, methods, ratios, base=not no_base, plan=plan, logs=True, ray=ray)


def _gpus(given: str | None) -> list[str]:
    """Return the GPU numbers in the value of --gpu-id, as texts such as ["0", "1"]. Each GPU gets a worker."""
    named = [] if given is None else given.split(",")
    if not all(name.isdecimal() for name in named) or len(set(named)) < len(named):
        raise SettingsError(f"--gpu-id={given}: not allowed; allowed: a GPU's number, from 0, or several: 0,1,2,3")
    return named


def _has_gpu() -> bool:
    """Tell whether the operating system lists a GPU (NVIDIA, AMD, or shared with WSL).

    Whether a GPU with a given number exists is checked by :func:`_check_seen`.
    """
    return any(map(Path.exists, map(Path, ("/dev/kfd", "/dev/dxg")))) or any(Path("/dev").glob("nvidia[0-9]*"))


def _check_seen(gpus: list[str]) -> None:
    """Raise SettingsError if PyTorch does not see the GPUs, because the sweep would run on the CPU for days."""
    import torch

    if (seen := torch.cuda.device_count()) < len(gpus):
        visible = "none" if len(gpus) == 1 or not seen else f"only {seen}"
        raise SettingsError(
            f"--gpu-id={','.join(gpus)}: PyTorch sees {visible} of these GPUs; name other GPUs, or leave --gpu-id out"
        )


def _model_of(folder: str) -> str:
    models = [_DEFAULT_MODEL] if folder == PRESSES else [spec.key for spec in all_models() if spec.folder == folder]
    if not models:
        raise SettingsError(f"{folder}: not a model's folder; name a model with --model (audiomarathon list models)")
    return models[0]


def _all_presses() -> str:
    from audiomarathon.compression.press import KVPress
    from audiomarathon.compression.registry import all_methods

    return ",".join(method.key for method in all_methods() if isinstance(method, KVPress))


if __name__ == "__main__":
    batch(sys.argv[1], sys.argv[2:])
