"""How well audio LLMs understand long audio, and what dropping audio tokens or KV cache costs and buys."""

__version__ = "0.1.0"

__all__ = ["__version__", "run_task"]


def run_task(task: str, *, model: str) -> None:
    """Run one task on one model with settings from env vars; see :func:`audiomarathon.cli.run_task`."""
    from audiomarathon.cli import run_task as run

    run(task, model=model)
