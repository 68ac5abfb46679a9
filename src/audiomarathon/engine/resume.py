"""What is said of a folder that a run goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from audiomarathon.runs.folder import RunFolder
from audiomarathon.text import counted


def report_resume(folder: RunFolder, clips: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Say how much of a folder counts, and what else it is good to know of it.

    Another version of ours than the one that last wrote the folder is named; it is no reason to refuse the folder.

    Parameters
    ----------
    clips
        Fingerprint of each sample's clips now.
    """
    from audiomarathon.engine.environment import environment

    last, now = (_version(facts) for facts in (folder.run.get("environment"), environment()))
    if folder.records and last != now:
        say(f"{folder.path}: last written by audiomarathon {last}, now {now}")
    if folder.weak:
        say(
            f"{folder.path}: weak fingerprint: an earlier version made records here; what it wrote of the checkpoint "
            "matches, but that weights and third-party code are the same is not certain"
        )
    done = folder.done(clips) & set(clips)
    if done == set(clips):
        say(f"{folder.path}: complete; nothing to do")
    elif done:
        say(f"{folder.path}: goes on from {len(done):,} of {counted(len(clips), 'sample')}")
    if beyond := len(folder.done() - set(clips)):
        say(f"{folder.path}: {counted(beyond, 'sample')} more on record, outside this run's limit and its summary")
    if changed := len((folder.done() & set(clips)) - done):
        say(f"{folder.path}: the clips of {counted(changed, 'sample')} have changed; done again")


def _version(facts: object) -> str:
    facts = facts if isinstance(facts, Mapping) else {}
    return f"{facts.get('audiomarathon')} ({str(facts.get('commit') or 'no commit')[:7]})"
