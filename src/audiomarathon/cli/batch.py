"""What `batch_test.sh` in a model folder runs: a sweep in the words of the first release's script.

The shell files are doors that hand over their folder's name; everything else is here and in `cli_sweep`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from audiomarathon.cli.output import reporting_errors
from audiomarathon.cli.sweep import DEFAULT_METHOD, DEFAULT_RATIOS, run_sweep
from audiomarathon.engine.executor import read_executor
from audiomarathon.errors import SettingsError

#: The folder of the KV presses; it belongs to no one model.
PRESSES = "kvpress"
_DEFAULT_MODEL = "qwen2.5-omni"

_EXAMPLES = """
examples:
  ./batch_test.sh                                    all ten tasks, base and nine ratios
  ./batch_test.sh -s 100 -r 0.5 -m fast_v,dart TAU GTZAN
  ./batch_test.sh -g 1 -r 0.0,0.3,0.6 -o out HAD      0.0 is base
  ./batch_test.sh -g 0,1,2,3 TAU                      a worker a GPU, samples shared out (needs Ray)
  ./batch_test.sh --plan                              what it would take, without running

Tasks are DESED GTZAN HAD LibriSpeech RACE SLUE TAU VESUS Vox Vox_age, in any case; none means all ten. All settings
of a task run side by side on each sample; an interrupted batch goes on where it stopped. A task that fails does not
stop the others. Everything else is set by env vars (README, "Settings"): AUDIOMARATHON_DATA, MODEL_PATH, ...

It leaves <output>/logs/<task>.log, <output>/summary.txt, .csv and .json, and each setting's records under
<output>/<task>/. Exit code: 0 all well, 1 a task or a sample failed, 2 the command is wrong.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message[:1].lower()}{message[1:]}; {self.prog} -h explains")


def _parser(folder: str) -> argparse.ArgumentParser:
    own = "all presses" if folder == PRESSES else DEFAULT_METHOD
    parser = _Parser(
        prog="batch_test.sh",
        usage="batch_test.sh [options] [TASK ...]",
        description=f"Runs tasks at many pruning ratios ({folder}) and sums up accuracy and timing.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("tasks", nargs="*", metavar="TASK", help="tasks; none = all ten")
    add("-g", "--gpu-id", metavar="N", help="GPUs to use, 0,1,2: sets CUDA_VISIBLE_DEVICES (default: that, or else 0)")
    add("-s", "--sample-limit", metavar="N", help="samples a task, stratified (default: SAMPLE_LIMIT, or else all)")
    add("-l", "--pruned-layer", metavar="K", help="layer to drop at (default: PRUNE_LAYER_IDX, or else 2)")
    add(
        "-r",
        "--ratios",
        metavar="R",
        default=DEFAULT_RATIOS,
        help="0.5, a list 0.1,0.5 or first:last:step (default: 0.1:0.9:0.1)",
    )
    add("-m", "--methods", metavar="M", help=f"methods, by commas, or all (default: PRUNE_METHOD, or else {own})")
    add("-o", "--output-dir", metavar="DIR", help=f"results (default: RESULTS_DIR, or else ./{folder}_Results)")
    add("--model", metavar="NAME", help="model (default: the folder's); MODEL_PATH names a checkpoint")
    add("--no-base", action="store_true", help="leave base out (then nothing measured can be compared)")
    add("--plan", action="store_true", help="print runs, samples, estimated hours and memory, and stop")
    return parser


def options(arguments: Sequence[str], folder: str) -> argparse.Namespace:
    """Read a command line, task names and options in any order.

    Raises
    ------
    SettingsError
        In one line.
    """
    return _parser(folder).parse_intermixed_args(list(arguments))


@reporting_errors
def batch(folder: str, arguments: Sequence[str]) -> int:
    """Run `batch_test.sh` of a folder and return its exit code."""
    given = options(arguments, folder)
    gpus = _gpus(given.gpu_id)
    if gpus:  # the driver reads it when CUDA is first used, which is after this
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")
    from audiomarathon.benchmarks.audiomarathon.benchmark import AUDIOMARATHON
    from audiomarathon.settings import RunSettings

    flags: dict[str, Any] = {
        "limit": given.sample_limit,
        "layer": given.pruned_layer,
        "results": given.output_dir or os.environ.get("RESULTS_DIR") or f"{folder}_Results",
    }
    for name, value in vars(given).items():
        if value == "":
            raise SettingsError(f"--{name.replace('_', '-')} is empty; leave it out for the default")
    try:
        settings = RunSettings.read(**flags)
    except SettingsError as error:
        names = {"--limit": "--sample-limit", "--layer": "--pruned-layer", "--results": "--output-dir"}
        flag, equals, rest = str(error).partition("=")
        raise SettingsError(f"{names.get(flag, flag)}{equals}{rest}") from None
    if gpus and settings.device != "cpu" and not given.plan:  # a plan is often made where the GPUs are not
        _check_seen(gpus)
    ray = read_executor("ray", workers=len(gpus)) if len(gpus) > 1 else None
    tasks = given.tasks or [task.key for task in AUDIOMARATHON.tasks]
    return run_sweep(
        tasks,
        given.model or _model_of(folder),
        settings,
        given.methods or (_all_presses() if folder == PRESSES and not os.environ.get("PRUNE_METHOD") else None),
        given.ratios,
        base=not given.no_base,
        plan=given.plan,
        logs=True,
        ray=ray,
    )


def _gpus(given: str | None) -> list[str]:
    """Return the GPUs that are named, none when none is; several take a worker each."""
    named = [] if given is None else given.split(",")
    if not all(name.isdecimal() for name in named) or len(set(named)) < len(named):
        raise SettingsError(f"--gpu-id={given}: not allowed; allowed: a GPU's number, from 0, or several: 0,1,2,3")
    return named


def _check_seen(gpus: list[str]) -> None:
    """Refuse GPUs that are not there: what is asked of a GPU is not to run for days on the CPU instead."""
    import torch

    if (seen := torch.cuda.device_count()) < len(gpus):
        found = "none" if len(gpus) == 1 or not seen else f"only {seen}"
        raise SettingsError(
            f"--gpu-id={','.join(gpus)}: PyTorch sees {found} of these GPUs here; name others, or leave it out"
        )


def _model_of(folder: str) -> str:
    from audiomarathon.models.registry import all_models

    if folder == PRESSES:
        return _DEFAULT_MODEL
    for spec in all_models():
        if spec.folder == folder:
            return spec.key
    raise SettingsError(f"{folder}: no model has this folder; name one with --model (audiomarathon list models)")


def _all_presses() -> str:
    from audiomarathon.compression.press import KVPress
    from audiomarathon.compression.registry import all_methods

    return ",".join(method.key for method in all_methods() if isinstance(method, KVPress))


if __name__ == "__main__":
    batch(sys.argv[1], sys.argv[2:])
