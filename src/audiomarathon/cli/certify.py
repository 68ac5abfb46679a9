"""`audiomarathon certify`: check on this machine and these weights that methods and times are as claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from audiomarathon.cli.command import with_settings
from audiomarathon.cli.options import Model, listed, option, output_file
from audiomarathon.cli.output import say
from audiomarathon.errors import SettingsError
from audiomarathon.files import check_writable, write_json
from audiomarathon.settings import RunSettings, cache_folder
from audiomarathon.terminal import showing_records

_SHORTEST = 1.0
_MARKS = {"pass": "good", "fail": "bad"}


@with_settings("model_path", "device", "device_map", "dtype", "attn_implementation", "sdpa_backends", "decode")
def certify(
    settings: RunSettings,
    model: Model = "embedded",
    seconds: Annotated[
        float | None, option("Length of the synthetic clips; one clip is three times as long [default: 30].")
    ] = None,
    methods: Annotated[
        str, option("Also check your own methods: FILE.py:CLASS, joined by commas.", "--methods", "--method")
    ] = "",
    output: Annotated[
        Path | None, output_file("Also write the certificate to this JSON file.", "certificate.json")
    ] = None,
) -> int:
    """Check on your machine and weights that every method does what it claims. Later runs record the result.

    Example: audiomarathon certify --model qwen2.5-omni -o certificate.json

    --methods my_pruner.py:Novelty also checks your own method, in addition to the methods that audiomarathon list
    methods shows.

    It takes minutes. Exit code 1 if a check fails.
    """
    if seconds is not None and not seconds >= _SHORTEST:
        raise SettingsError(f"--seconds {seconds:g}: not allowed; allowed: {_SHORTEST:g} and more")
    from audiomarathon.certify.certificate import certify as make
    from audiomarathon.certify.certificate import store
    from audiomarathon.compression.external import Foreign
    from audiomarathon.compression.registry import find_method
    from audiomarathon.engine.engine import open_local
    from audiomarathon.report.render import Table, show

    added = [find_method(name, 0.0) for name in listed(methods)]
    if foreign := [method.key for method in added if isinstance(method, Foreign)]:
        raise SettingsError(
            f"--methods: {foreign[0]} cannot be checked, since it does not tell what it keeps; "
            "allowed: subclasses of TokenPruner or KVPress"
        )
    check_writable(cache_folder())  # fail now, not after minutes of checks
    if output is not None:
        check_writable(output.absolute().parent)
    certificate = make(open_local(model, settings, (), say=say), seconds, say, added)
    path = store(certificate)
    if output is not None:
        write_json(output, certificate.as_json())
    about = certificate.about
    title = (
        f"{certificate.model} on {about['device']}, {about['dtype']}, "
        f"{' '.join(filter(None, (about['attention'], about.get('sdpa_backends'), about.get('decode'))))}: "
        f"{certificate.verdict.upper()} ({certificate.took_seconds:.0f} s)"
    )
    rows = [
        {
            "check": check.name,
            "verdict": finding.verdict,
            "verdict_mark": _MARKS.get(finding.verdict, "dim"),
            "figure": finding.figure,
            "when it fails": check.meaning,
        }
        for check, finding in certificate.rows
    ]
    with showing_records():
        show(Table.of(rows, title=title, least=("when it fails",)))
    say(f"certificate: {output or path}; later runs of this checkpoint on this machine record it")
    return 0 if certificate.verdict == "pass" else 1
