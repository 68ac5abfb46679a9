"""Command lines of the scripts in `Segment/`: one per raw corpus, with common options, and one that cuts recordings."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_origin, get_type_hints

import typer

from audiomarathon.cli.command import run_script, with_options
from audiomarathon.cli.options import argument, option, output_folder
from audiomarathon.errors import DataError
from audiomarathon.segment.registry import corpus_class
from audiomarathon.settings import SEED

if TYPE_CHECKING:
    pass

_OUTPUT = output_folder("Output folder, created if missing.")
_LOW = option("Shortest clip in seconds.", "--min")
_HIGH = option("Longest clip in seconds.", "--max")
_GAP = "the corpus's default; 0 with --crossfade"
_RATE = option("Sampling rate of the clips, in Hz.")


def door(task: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a script of `Segment/`: build a task's folder from its raw corpus, according to the command line.

    Exit with 0, or with 2 after an error. Attributes of the corpus class that are annotated with typer's `Option`
    become further options.
    """
    corpus = corpus_class(task)

    def build(
        raw: Annotated[list[Path], argument("Folders of the raw corpus.")],
        output: Annotated[Path, _OUTPUT],
        low: Annotated[float, _LOW] = corpus.seconds[0],
        high: Annotated[float, _HIGH] = corpus.seconds[1],
        gap: Annotated[float | None, option("Silence between joined clips in seconds.", show_default=_GAP)] = None,
        crossfade: Annotated[float, option("Overlap of joined clips in seconds, instead of silence.")] = 0.0,
        rate: Annotated[int, _RATE] = corpus.rate,
        seed: Annotated[int, option("Seed of lengths, order and options.")] = SEED,
        limit: Annotated[int, option("Number of clips to make, spread over all groups; 0 = all.", min=0)] = 0,
        jobs: Annotated[int, option("Groups to build at the same time.", min=0)] = 1,
        **of_corpus: Any,
    ) -> None:
        from audiomarathon.segment.building import build as build_folder
        from audiomarathon.segment.joining import Joining

        with _reading():
            gap = gap if gap is not None else 0.0 if crossfade else corpus.gap
            joining, reader = Joining(low, high, gap, crossfade, rate), corpus(raw, seed, **of_corpus)
            typer.echo(build_folder(reader, joining, output, limit=limit, jobs=max(1, jobs)))

    low, high = corpus.seconds
    about = (
        f"Build the task `{task}` from {corpus.title}: join clips to {low:g} to {high:g} s, and write the task's "
        f"metadata and manifest.jsonl, which lists the source clips in each clip.\n\n\b\n"
        f"Expected layout, as published:\n{corpus.layout}"
    )
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(corpus, name, Parameter.empty), annotation=kind)
        for name, kind in get_type_hints(corpus, include_extras=True).items()
        if get_origin(kind) is Annotated
    ]
    example = f"{corpus.example}\n\nThe same command resumes an interrupted build."
    _script(with_options(build, options), arguments, about, example)


def cut_door(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the script of `Segment/` that cuts long recordings into clips, according to the command line.

    Exit with 0, or with 2 after an error.
    """
    from audiomarathon.segment.cutting import Cutting
    from audiomarathon.segment.cutting import cut as cut_recordings

    usual = Cutting()

    def cut(
        raw: Annotated[list[Path], argument("Recordings, or folders of recordings.")],
        output: Annotated[Path, _OUTPUT],
        low: Annotated[float, _LOW] = usual.low,
        high: Annotated[float, _HIGH] = usual.high,
        rate: Annotated[int, _RATE] = usual.rate,
        silence: Annotated[float, option("Audio this many dB below loud passages counts as silence.")] = usual.silence,
    ) -> None:
        with _reading():
            typer.echo(cut_recordings(raw, Cutting(low, high, rate, silence), output))

    about = (
        "Cut long recordings (podcasts, meetings) into clips, at silences if possible. "
        "manifest.jsonl lists where each clip lies in its recording."
    )
    _script(cut, arguments, about, "podcasts -o data/podcasts --min 90 --max 300")


def _script(command: Any, arguments: Sequence[str] | None, about: str, example: str) -> NoReturn:
    epilog = f"\b\nexample:\n  python {Path(sys.argv[0]).name} {example}"
    run_script(command, arguments, help=about, epilog=epilog, no_args_is_help=True)
    sys.exit(0)


@contextmanager
def _reading() -> Iterator[None]:
    """Turn errors from reading the corpus or writing files inside the `with` block into a :class:`DataError`."""
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"a table or transcript of the corpus is not UTF-8 text ({error})") from None
    except OSError as error:
        raise DataError(str(error)) from None
