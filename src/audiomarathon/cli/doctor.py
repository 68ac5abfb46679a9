"""`audiomarathon doctor`: check the installation; with --model, check whether a model fits this GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from audiomarathon.cli.command import with_settings
from audiomarathon.cli.options import complete_models, option
from audiomarathon.errors import SettingsError
from audiomarathon.models.registry import get_model
from audiomarathon.settings import RunSettings
from audiomarathon.terminal import console

if TYPE_CHECKING:
    from audiomarathon.cli.doctor_checks import Check
    from audiomarathon.costs.memory_plan import MemoryPlan
    from audiomarathon.report.render import Table


@with_settings("model_path", "dtype", "device", "device_map", read=dict)
def doctor(
    settings: dict[str, Any],
    model: Annotated[
        str | None, option("Only estimate whether this model fits the memory.", complete=complete_models)
    ] = None,
) -> int:
    """Check versions, GPU, model cache and data; say what is missing and how to fix it.

    Example: audiomarathon doctor --model qwen2.5-omni

    With --model: estimate from the checkpoint's config the memory for 90, 180 and 300 s of audio, and the longest audio
    that fits. Exit code 1 if 300 s do not fit this GPU. With --model openai: check whether the endpoint answers.
    """
    from audiomarathon.cli.doctor_checks import examine, examine_endpoint

    if model is None:
        if settings["model_path"] is not None:
            raise SettingsError(
                f"--model-path {settings['model_path']}: name the model of this checkpoint with --model"
            )
        return _report(examine())
    spec, read = get_model(model), RunSettings.read(**settings)
    if spec.remote:
        return _report([*examine_endpoint(read.model_path)])
    from audiomarathon.costs.memory_plan import LENGTHS, plan_memory
    from audiomarathon.report.render import show

    plan = plan_memory(spec, read)
    show(_table(plan, LENGTHS))
    out = console()
    for line in (*_lines(plan, LENGTHS[-1]), *plan.limits):
        out.print(line, markup=False, soft_wrap=True)
    return 1 if plan.fits(LENGTHS[-1]) is False else 0


def _report(checks: list[Check]) -> int:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False, emoji=False)  # paths may hold emoji codes
    for check in checks:
        mark = "[green]ok[/]" if check.good else "[yellow]--[/]"
        console.print(f"{mark} {escape(check.text)}")
        if check.remedy:
            console.print(f"   {check.remedy}", markup=False)
    return 1 if any(check.fatal for check in checks) else 0


def _table(plan: MemoryPlan, lengths: tuple[int, ...]) -> Table:
    from audiomarathon.report.render import Kind, Table

    title = f"{plan.spec.key} ({plan.checkpoint}), {plan.dtype}, batch 1, base: GB, estimated"
    last = "GPU needed" if plan.room is None else "fits"
    rows = []
    for seconds in lengths:
        (tokens, parts), card = plan.need(seconds), plan.card(seconds)
        needed = f"{card} GB" if card else "several, DEVICE_MAP=auto"
        sizes = {part: size / 1e9 for part, size in parts.items()}
        fits = {True: "yes", False: "no", None: needed}[plan.fits(seconds)]
        rows.append({"audio": f"{seconds} s", "tokens": tokens, **sizes, "sum": sum(parts.values()) / 1e9, last: fits})
    kinds = {"audio": Kind("audio"), "tokens": Kind(form=","), "sum": Kind(form=".1f"), last: Kind(last)}
    return Table.of(rows, title=title, kinds=kinds | dict.fromkeys(plan.need(0)[1], Kind(form=".2f")))


def _lines(plan: MemoryPlan, most: int) -> list[str]:
    kib = plan.facts.kv_bytes / 1024
    lines = [f"{plan.source}; a cached token takes {kib:.0f} KiB; the LM head computes one position's logits."]
    lines.append("An estimate, not a measurement. It leaves out the memory of the audio encoder before the LLM runs.")
    if plan.room is None:
        if card := plan.card(most):
            lines.append(f"No GPU here. On a GPU of {card} GB: up to {_length(plan.longest(card * 2**30 * 0.95))}.")
        return lines
    longest = plan.longest(plan.room)
    lines.append(f"{plan.room_name}: {plan.room / 1e9:.1f} GB free; the longest audio that fits: {_length(longest)}.")
    if longest < min(most, plan.spec.heard_seconds or most):
        lines.append("To use less memory: a smaller checkpoint, DTYPE=bfloat16, or DEVICE_MAP=auto over several GPUs.")
    return lines


def _length(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds else "none"
