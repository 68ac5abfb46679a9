"""Do the methods beat random and frame? One page: `python scripts/real/rivals.py OUT`.

There are three sweeps. Whisper base on real speech (see speech.py) runs every method that works without the LLM's
attention, at the decoder's input. The embedded model's needle tasks, and its ruler, run every token pruner at layer 1,
the first layer at which all pruners can choose. Then the script prints Markdown: each setting beside `random` and
beside `frame` of the same ratio, paired on the same samples, with p after Holm's correction over all settings of the
sweep; and the claims of papers. `--read` only prints the tables of sweeps in OUT; the same command continues a stopped
sweep. The script makes Whisper base's folder (see whisper_base.py). It needs `pip install 'audiomarathon[vad,report]'`.
With `--limit 14` it takes about an hour on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import speech
import whisper_base
from demo import command

from audiomarathon.audio.voice_activity import check_detector
from audiomarathon.compression.registry import BUILT_IN
from audiomarathon.compression.token_pruner import TokenPruner
from audiomarathon.embedded.mini_benchmark import mini_benchmark
from audiomarathon.embedded.world import NEEDLES
from audiomarathon.engine.sweep import parse_ratios
from audiomarathon.errors import AudioMarathonError, RecordError
from audiomarathon.metrics.paired import PairedResult
from audiomarathon.results.compare import holm_within, weighed
from audiomarathon.results.pairs import Pairs, mean_scores
from audiomarathon.results.systems import System, read_systems

RATIOS = "0.3,0.5,0.7,0.9"
BARS = ("random", "frame")
MARGIN, SEED = 0.02, 42
HOLDS = {"yes": "holds here", "no": "does not", "not shown": "not shown"}


@dataclass(frozen=True)
class Part:
    """A sweep: the name of its folder, its title, and the place in the model where it drops tokens."""

    name: str
    title: str
    where: str


PARTS = (
    Part("whisper", "Whisper base, real speech: 1 − WER", "input"),
    Part("needles", f"The embedded model's needle tasks ({', '.join(NEEDLES)}): mean score", "layer1"),
    Part("ruler", "The embedded model's ruler (`ruler/word`): accuracy", "layer1"),
)


@dataclass(frozen=True)
class Claim:
    """A claim that a paper makes about a method.

    `bar` is the method that this method is claimed to beat. It is "base" (no compression) if the claim is that there is
    no loss, which counts as confirmed if the interval excludes a loss of `MARGIN`. It is "" if the claim cannot be
    tested here, for the reason in `why`.
    """

    method: str
    paper: str
    claim: str
    ratio: str = ""
    bar: str = ""
    parts: tuple[str, ...] = ("needles", "ruler")
    why: str = ""


LONG = "the toy's replies are one token, which prefill makes before a press acts"
CLAIMS = (
    Claim("fast_v", "2403.06764", "half of the tokens can go after an early layer without loss", "0.5", "base"),
    Claim("dart", "2502.11494", "duplicates tell better than attention what to drop", "0.9", "fast_v"),
    Claim("segment_fast_v", "2511.14293", "choosing within segments beats attention alone", "0.7", "fast_v"),
    Claim("divprune", "2503.02175", "diverse tokens beat those with most attention", "0.9", "fast_v"),
    Claim("speechprune_like", "2412.12009", "at high ratios far better than random", "0.7", "random"),
    Claim("fastadasp_like", "2410.03007", "half of the tokens merged without loss", "0.5", "base"),
    Claim("merge_adjacent", "2306.16009", "half merged without loss, once trained", "0.5", "base", ("whisper",)),
    Claim("fast_v, dart, …", "", "speed-ups on a GPU", why="no GPU"),
    Claim("snapkv, tova and all presses", "", "little loss at high ratios in long replies", why=LONG),
)  # fmt: skip
SAYING = (
    "In our words and shortened: read the papers. The ratios are ours where a paper has several. A `_like` method and",
    "`merge_adjacent` (A-ToMe without its training) depart from the paper, so their rows say nothing of its own code.",
    "*Holds here*: better with p < 0.05 after Holm's correction over the rows of this table that have a p; or, for",
    f'"without loss", an interval that excludes a loss of {MARGIN}.',
)


def methods(*, at_input: bool) -> list[str]:
    """Return the keys of the token pruners that work at the input (else at layer 1), `random` and `frame` first."""
    can = [method.key for method in BUILT_IN if isinstance(method, TokenPruner) and "layer" in method.places]
    blind = [
        method.key
        for method in BUILT_IN
        if isinstance(method, TokenPruner) and not method.scored and "input" in method.places
    ]
    keys = [key for key in can if not at_input or key in blind]
    try:
        check_detector()
    except AudioMarathonError as error:
        keys.remove("keep_speech")
        print(f"without keep_speech: {error}")
    return [*BARS, *(key for key in keys if key not in BARS)]


def run(out: Path, limit: int, ratios: str) -> int:
    """Run the sweeps; return the exit code of the first that failed."""
    data, toy = out / "speech", out / "toy"
    if whisper_base.main() or speech.main([str(data)]):
        return 1
    planted = ("--minutes", "1", "--places", "0,0.5,1", "--needles", "1", "--snr", "20", "--questions", "word",
               "--items", 16, "--backgrounds", 16)  # fmt: skip  # with 8, no p can survive the correction
    if code := command("ruler", toy, *planted):
        return code
    whisper = ("--model", "whisper-base", "--model-path", whisper_base.whisper_base(), "--at", "input")
    embedded = ("--model", "embedded", "--layer", 1)
    for part, args in {
        "whisper": ((data / "prompts.toml"), *whisper, "--data", data, "--limit", limit),
        "needles": (*NEEDLES, *embedded, "--data", mini_benchmark()),
        "ruler": ("ruler/word", *embedded, "--data", toy),
    }.items():
        grid = ("--methods", ",".join(methods(at_input=part == "whisper")), "--ratios", ratios, "--no-timing")
        if code := command("sweep", *args, *grid, "--results", out / "runs" / part):
            return code
    return 0


def paired(system: System, other: System) -> tuple[PairedResult, list[Pairs]]:
    """Test one setting against another on the tasks that both have, weighted as in their benchmark.

    Return (result of the test, pairs of samples of each task).
    """
    pairs = {key: Pairs.of(task_run, other.runs[key]) for key, task_run in system.runs.items() if key in other.runs}
    return weighed({key: each.drawn(SEED) for key, each in pairs.items()}, SEED), list(pairs.values())


def verdict(test: PairedResult, p: float | None, margin: float = 0.0) -> str:
    """Return whether a test shows that a setting is better than the one it is compared with: "yes", "no", "not shown".

    "no" means that it is worse. With a margin (an allowed loss), "yes" means that the loss is smaller than the margin.
    """
    if test.interval is None or test.difference is None:
        return "not shown"
    if margin:
        low, high = test.interval
        return "yes" if low > -margin else "no" if high < -margin else "not shown"
    if p is None or p >= 0.05 or not test.difference:
        return "not shown"
    return "yes" if test.difference > 0 else "no"


def shown(test: PairedResult, p: float | None = None) -> str:
    """Return a difference as text, with its interval, and with p if there is one."""
    low, high = test.interval or (float("nan"),) * 2
    return f"{test.difference or 0:+.3f} [{low:+.3f}, {high:+.3f}]" + ("" if p is None else f", p {p:.2g}")


def table(part: Part, systems: Mapping[str, System]) -> list[str]:
    """Return the lines of a sweep's table: each setting compared with `random` and `frame` of the same ratio."""
    tests: dict[str, dict[str, tuple[PairedResult, list[Pairs]]]] = {bar: {} for bar in BARS}
    for label, system in systems.items():
        key, _, rest = label.partition("-")
        for bar in BARS:
            if key not in (bar, "base") and (other := systems.get(f"{bar}-{rest}")):
                tests[bar][label] = paired(system, other)
    head = [f"− {bar}, p (Holm) | beats {bar}" for bar in BARS]
    lines = [f"## {part.title}", "", f"| setting | score | {' | '.join(head)} | n |", "|---" * 7 + "|"]
    corrected = {
        bar: dict(zip(bar_tests, holm_within([("", result.p) for result, _ in bar_tests.values()]), strict=True))
        for bar, bar_tests in tests.items()
    }
    base, counts = systems["base-0"], {bar: Counter[str]() for bar in BARS}
    for label, system in systems.items():
        _found, pairs = paired(system, base)
        cells = []
        for bar in BARS:
            if label in tests[bar]:
                test, p = tests[bar][label][0], corrected[bar][label]
                cells += [shown(test, p), verdict(test, p)]
                counts[bar][cells[-1]] += 1
            else:
                cells += ["", ""]
        score = mean_scores(pairs)[0]
        count = sum(len(each.pairs) for each in pairs)
        lines.append(f"| `{label}` | {'–' if score is None else f'{score:.3f}'} | {' | '.join(cells)} | {count} |")
    told = (
        f"beats `{bar}`: {', '.join(f'{word} {bar_counts[word]}' for word in HOLDS)}"
        for bar, bar_counts in counts.items()
    )
    return [*lines, "", f"{'; '.join(told)}.", ""]


def claims(sweeps: Mapping[str, Mapping[str, System]]) -> list[str]:
    """Return the lines of the table of claims; p is corrected by Holm's method over all rows that have one."""
    rows: list[tuple[Claim, Part, PairedResult | None]] = []
    for claim in CLAIMS:
        for part in PARTS if claim.bar else PARTS[:1]:
            systems, rest = sweeps.get(part.name, {}), f"-{claim.ratio}-{part.where}"
            system, bar = (
                systems.get(claim.method + rest),
                systems.get("base-0" if claim.bar == "base" else claim.bar + rest),
            )
            if not claim.bar or (part.name in claim.parts and system and bar):
                rows.append((claim, part, paired(system, bar)[0] if claim.bar and system and bar else None))
    beats = [None if test is None or claim.bar == "base" else test.p for claim, _part, test in rows]
    corrected = holm_within([("", p) for p in beats])
    lines = ["| method | claim | here | difference | verdict |", "|---|---|---|---|---|"]
    for (claim, part, test), p in zip(rows, corrected, strict=True):
        name = f"`{claim.method}`" + (f" ({claim.paper})" if claim.paper else "")
        if test is None:
            lines.append(f"| {name} | {claim.claim} | {claim.why} | | cannot be tested here |")
            continue
        margin = MARGIN if claim.bar == "base" else 0.0
        where = f"{part.name}, ratio {claim.ratio}, − `{claim.bar}`"
        lines.append(f"| {name} | {claim.claim} | {where} | {shown(test, p)} | {HOLDS[verdict(test, p, margin)]} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweeps unless `--read` is given, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for data and results")
    parser.add_argument("--limit", type=int, default=0, help="clips of speech for Whisper; 0 = all (0)")
    parser.add_argument("--ratios", default=RATIOS, help=f"fractions removed, joined by commas ({RATIOS})")
    parser.add_argument("--read", action="store_true", help="only print the tables")
    given = parser.parse_args(arguments)
    try:
        parse_ratios(given.ratios)
        if not given.read and (code := run(given.out, given.limit, given.ratios)):
            return code
        sweeps = {
            part.name: {system.method: system for system in read_systems([given.out / "runs" / part.name])}
            for part in PARTS
            if (given.out / "runs" / part.name).is_dir()
        }
        if not any(sweeps.values()):
            raise RecordError(f"{given.out / 'runs'}: no finished sweep to read; leave out --read to run them")
        for part in PARTS:
            if sweeps.get(part.name):
                print(*table(part, sweeps[part.name]), sep="\n")
        print("## What papers claim\n", *SAYING, "", *claims(sweeps), sep="\n")
    except (AudioMarathonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
