"""`audiomarathon report`: write one HTML page about any number of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from audiomarathon.cli.options import Margin, Runs, margins_of, option, output_file, output_folder
from audiomarathon.cli.output import say
from audiomarathon.files import write_text


def report(
    runs: Runs,
    output: Annotated[Path, output_file("HTML file to write.", "report.html", ".htm")] = Path("report.html"),
    title: Annotated[str, option("Heading of the page.")] = "AudioMarathon report",
    samples: Annotated[int, option("Number of samples to show; samples on which settings disagree come first.")] = 500,
    audio: Annotated[
        str, option("link (play clips from their files), embed (store them in the page) or none.")
    ] = "link",
    spectrograms: Annotated[bool, option("Draw each clip's spectrogram (decodes the clips).")] = True,
    data: Annotated[Path | None, option("Data root (default: the one the runs used).")] = None,
    margin: Margin = None,
    figures: Annotated[
        Path | None,
        output_folder("Also write PDF figures with their CSV, tables (.md, .tex) and records here.", "--figures"),
    ] = None,
) -> None:
    """Write one self-contained HTML page: scores, curves with the Pareto front, costs, and a sample browser.

    Examples:
    audiomarathon report results -o report.html
    audiomarathon report results --figures paper/figures --audio none
    audiomarathon report results --margin 0.02     # recommend only what is decided to lose no more (docs/lossless.md)

    The page needs no network and no server. Prompts, players and spectrograms need the data; without it the page shows
    everything else.
    """
    from tqdm import tqdm

    from audiomarathon.report.page import PageOptions, page
    from audiomarathon.report.page_data import PageData
    from audiomarathon.results.compare import check_margins
    from audiomarathon.results.systems import read_systems

    options = PageOptions(title, samples, audio, spectrograms, data)
    margins, systems = margins_of(margin), read_systems(runs)
    check_margins(margins, systems)
    data_of_page = PageData(systems, margins=margins)
    with tqdm(desc="samples", unit="sample", disable=None) as bar:
        html = page(data_of_page, options, step=bar.update)
    write_text(output, html)
    say(f"report: {output} ({len(html) / 1e6:.1f} MB)")
    if figures is not None:
        from audiomarathon.report.paper import write_paper

        for path in write_paper(data_of_page, figures):
            say(f"wrote {path}")
