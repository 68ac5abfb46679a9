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


@with_settings("model_path", "dtype", "device", "device_map", "prefill_chunk", read=dict)
def doctor(
    settings: dict[str, Any],
    model: Annotated[
        str | None, option("Only estimate whether this model fits the memory.", complete=complete_models)
    ] = None,
    seconds: Annotated[
        float | None,
        option("Check whether this model takes so many seconds of audio, and show the source of each limit.", min=1),
    ] = None,
) -> int:
    """Check versions, GPU, model cache and data; say what is missing and how to fix it.

    Example: audiomarathon doctor --model qwen2.5-omni

    With --model: estimate from the checkpoint's config the memory for 90, 180 and 300 s of audio, and the longest audio
    that fits. Exit code 1 if 300 s do not fit this GPU. With --seconds: the same for this length, with the model's
    limits; exit code 1 if it exceeds a limit. With --model openai: check whether the endpoint answers.
    """
    from audiomarathon.cli.doctor_checks import Check, examine, examine_endpoint

    if model is None:
        if settings["model_path"] is not None:
            raise SettingsError(
                f"--model-path {settings['model_path']}: name the model of this checkpoint with --model"
            )
        if seconds is not None:
            raise SettingsError(f"--seconds {seconds:g}: name a model with --model")
        return _report(examine())
    spec, read = get_model(model), RunSettings.read(**settings)
    if spec.remote:
        known = [Check(True, "no limit of its audio's length is known here; the server decides")] * bool(seconds)
        return _report([*examine_endpoint(read.model_path), *known])
    from audiomarathon.costs.limits import REPLY_TOKENS
    from audiomarathon.costs.memory_plan import LENGTHS, plan_memory
    from audiomarathon.engine.setup import check_chunks
    from audiomarathon.report.render import show

    check_chunks(spec, read)
    plan = plan_memory(spec, read)
    lengths: tuple[float, ...] = (seconds,) if seconds else LENGTHS
    show(_table(plan, lengths))
    out, reply, refused = console(), read.max_new_tokens or REPLY_TOKENS, ""
    lines = [*_lines(plan, lengths[-1]), *plan.limits]
    if seconds and plan.known:
        lines += plan.known.lines(seconds, reply)
        refused = plan.known.refused(seconds, reply)
    for line in lines:
        out.print(line, markup=False, soft_wrap=True)
    return 1 if refused or plan.fits(lengths[-1]) is False else 0


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


def _table(plan: MemoryPlan, lengths: tuple[float, ...]) -> Table:
    from audiomarathon.report.render import Kind, Table

    title = f"{plan.spec.key} ({plan.checkpoint}), {plan.dtype}, batch 1, base: GB, estimated"
    last = "GPU needed" if plan.room is None else "fits"
    rows = []
    for seconds in lengths:
        (tokens, parts), card = plan.need(seconds), plan.card(seconds)
        needed = f"{card} GB" if card else "several, DEVICE_MAP=auto"
        sizes = {part: size / 1e9 for part, size in parts.items()}
        fits = {True: "yes", False: "no", None: needed}[plan.fits(seconds)]
        rows.append(
            {"audio": f"{seconds:g} s", "tokens": tokens, **sizes, "sum": sum(parts.values()) / 1e9, last: fits}
        )
    kinds = {"audio": Kind("audio"), "tokens": Kind(form=","), "sum": Kind(form=".1f"), last: Kind(last)}
    return Table.of(rows, title=title, kinds=kinds | dict.fromkeys(plan.need(0)[1], Kind(form=".2f")))


def _lines(plan: MemoryPlan, most: float) -> list[str]:
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
