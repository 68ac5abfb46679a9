"""The command line of the scripts in `Segment/`: one corpus each, the same options."""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from audiomarathon.errors import AudioMarathonError
from audiomarathon.segment.build_log import LEFT_OUT_FILE
from audiomarathon.segment.corpus import Corpus

#: The corpora by task: the module here and its class.
CORPORA = {
    "tau": ("tau", "TauCorpus"),
    "gtzan": ("gtzan", "GtzanCorpus"),
    "had": ("had", "HadCorpus"),
    "vox": ("voxceleb", "VoxCorpus"),
    "vox_age": ("voxceleb", "VoxAgeCorpus"),
    "librispeech": ("librispeech", "LibriSpeechCorpus"),
    "vesus": ("vesus", "VesusCorpus"),
    "desed": ("desed", "DesedCorpus"),
    "slue": ("slue", "SlueCorpus"),
    "race": ("race", "RaceCorpus"),
}


class Parser(argparse.ArgumentParser):
    """Says a usage error in one line, and where the help is."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help explains\n")


def corpus_class(task: str) -> type[Corpus]:
    """Return the corpus of which a task is built."""
    module, name = CORPORA[task]
    found: type[Corpus] = getattr(import_module(f"audiomarathon.segment.corpora.{module}"), name)
    return found


def door(task: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Build the task's folder as the command line says, and exit: 0, or 2 where that cannot be done."""
    arguments = sys.argv[1:] if arguments is None else arguments
    corpus = corpus_class(task)
    parser = _parser(corpus)
    if not arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    options = parser.parse_args(arguments)
    leave(parser.prog, lambda: _build(corpus, options))


def leave(program: str, work: Callable[[], str]) -> NoReturn:
    """Do the work, print what it says and exit; an error is one line."""
    try:
        print(work())  # noqa: T201
    except AudioMarathonError as error:
        print(f"{program}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except (UnicodeDecodeError, csv.Error) as error:
        print(f"{program}: a table or transcript of the corpus is not UTF-8 text ({error})", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except OSError as error:
        print(f"{program}: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    sys.exit(0)


def reasons(left_out: Sequence[tuple[str, str]], folder: Path) -> list[str]:
    """Return in lines what was left out, by reason, and where all of it is listed."""
    if not left_out:
        return []
    counts = Counter(reason for _, reason in left_out)
    first = {reason: name for name, reason in reversed(left_out)}
    lines = [f"left out: {number} x {reason} (such as {first[reason]})" for reason, number in counts.most_common(10)]
    return [*lines, f"all that was left out: {folder / LEFT_OUT_FILE}"]


def _build(corpus: type[Corpus], options: argparse.Namespace) -> str:
    from audiomarathon.segment.building import build
    from audiomarathon.segment.joining import Joining

    gap = options.gap if options.gap is not None else 0.0 if options.crossfade else corpus.gap
    joining = Joining(options.min, options.max, gap, options.crossfade, options.rate)
    reader = corpus(options)
    built = build(reader, joining, options.output, limit=options.limit, jobs=options.jobs, progress=sys.stderr.isatty())
    told = (
        f"{corpus.task}: {built.clips} clips, {built.seconds / 3600:.2f} h, of {built.sources} source clips "
        f"in {options.output} ({built.new} new)"
    )
    return "\n".join([told, *reasons(built.left_out, options.output)])


def _parser(corpus: type[Corpus]) -> Parser:
    low, high = corpus.seconds
    script = Path(sys.argv[0]).name
    parser = Parser(
        prog=script,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            f"Build the task `{corpus.task}` from {corpus.title}: clips joined to {low:g} to {high:g} s, the task's "
            f"metadata, and\nmanifest.jsonl, which says what is where in each clip.\n\n"
            f"The corpus is expected as it is published:\n{corpus.layout}"
        ),
        epilog=f"example:\n  python {script} {corpus.example}\n\nThe same command continues a build.",
    )
    parser.add_argument("raw", nargs="+", type=Path, help="folder of the raw corpus, or several")
    parser.add_argument("-o", "--output", required=True, type=Path, help="folder of the task, made if need be")
    corpus.add_arguments(parser)
    parser.add_argument("--min", type=float, default=low, metavar="S", help="shortest clip in seconds (%(default)g)")
    parser.add_argument("--max", type=float, default=high, metavar="S", help="longest clip in seconds (%(default)g)")
    parser.add_argument("--gap", type=float, metavar="S", help=f"silence between clips in seconds ({corpus.gap:g})")
    parser.add_argument("--crossfade", type=float, default=0.0, metavar="S", help="instead of a gap: seconds (0)")
    parser.add_argument("--rate", type=int, default=corpus.rate, metavar="HZ", help="of the output (%(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="of lengths, order and options (%(default)s)")
    parser.add_argument("--limit", type=count, default=0, metavar="N", help="make only N clips, of all classes (all)")
    parser.add_argument("--jobs", type=jobs, default=1, metavar="N", help="groups to work on at a time (%(default)s)")
    return parser


def count(text: str) -> int:
    """Read a number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, found {text!r}")
    return int(text)


def jobs(text: str) -> int:
    """Read a number of jobs, at least 1."""
    return max(1, count(text))
