"""Recognise a finished run without PyTorch, so that a repeated command says "nothing to do" at once.

Device, precision and the abilities of the model's family normally come from PyTorch and the family's code. `run.json`
stores them, with a hash of everything that they depend on: settings, this machine, installed packages, the files of
this package. While the hash is unchanged, the stored facts are valid, and the rest of the run's identity is computed
anew. In any doubt, the functions here return None, and the run is prepared as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any

from audiomarathon.benchmarks import Task
from audiomarathon.compression.method import Method
from audiomarathon.engine.identity import places_of
from audiomarathon.engine.setup import Hardware, Setup, what_decides
from audiomarathon.engine.transcripts import Transcriber
from audiomarathon.errors import ModelError
from audiomarathon.models.checkpoint import find_checkpoint
from audiomarathon.models.registry import BUILT_IN, ModelSpec, get_model
from audiomarathon.runs.folder import read_run
from audiomarathon.settings import RunSettings

DECIDED = "decided"
"""Field of `run.json`: facts from PyTorch and the model's family, and the hash of everything that they depend on."""

_FAMILY = ("eager_because", "names_language", "transcribes_only", "text_only", "cross")


class _Facts(SimpleNamespace):
    """The attributes of a model family's class that `run.json` recorded.

    Any other attribute raises :class:`ModelError`; then the run is prepared with PyTorch, as usual.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ModelError(f"{name}: no fact that run.json records of a model's family")


@dataclass(frozen=True)
class _Recorded(ModelSpec):
    """A model whose family is known only from `run.json`."""

    family_facts: Mapping[str, Any] = field(default_factory=dict)

    def load_family(self) -> Any:
        """Return the model family's attributes as recorded in `run.json`, in place of its class.

        The checks of language and length, which need the class, passed when these attributes were recorded.
        """
        # A model that hears nothing has no limit on clip length.
        passed = {"check_language": lambda *_: None, "longest_reply": lambda *_: 0, "hears": False}
        return _Facts(**{name: self.family_facts[name] for name in _FAMILY}, **passed)


def decided(setup: Setup) -> dict[str, Any]:
    """Return the field :data:`DECIDED` of `run.json`, from which :func:`recorded_setup` recognises the run later.

    The field is {"from": hash, "hardware": …, "family": …}: hardware, attributes of the model's family, and a hash of
    everything that both depend on. Return {} if another process determined them, or the model belongs to a plug-in.
    """
    spec = setup.spec
    if not setup.asked or get_model(spec.key) not in BUILT_IN:
        return {}
    family = spec.load_family()
    facts = {name: getattr(family, name) for name in _FAMILY}
    return {DECIDED: {"from": setup.asked, "hardware": asdict(setup.hardware), "family": facts}}


def recorded_setup(tasks: Sequence[Task], model: str, settings: RunSettings, methods: Sequence[Method]) -> Setup | None:
    """Return the setup of a repeated command from `run.json`, without PyTorch; None if it might be outdated.

    The result equals that of :func:`~audiomarathon.engine.setup.find_setup`.

    Raises
    ------
    ModelError
        The checkpoint is not on this machine.
    """
    spec = get_model(model)
    if spec.remote or settings.save_attn or any(isinstance(method, Transcriber) for method in methods):
        return None
    paths = places_of(tasks, spec, settings, methods)
    if not paths or not all((path / "run.json").is_file() for path in paths):
        return None
    first, *others = (read_run(path).get(DECIDED) for path in paths)
    asked = what_decides(spec, settings)
    if any(other != first for other in others) or not isinstance(first, dict) or first.get("from") != asked:
        return None
    with suppress(KeyError, TypeError):  # a damaged record
        hardware, known = Hardware(**first["hardware"]), {name: first["family"][name] for name in _FAMILY}
        checkpoint = replace(find_checkpoint(settings.model_path or spec.checkpoint), variant=spec.variant)
        spec_fields = {spec_field.name: getattr(spec, spec_field.name) for spec_field in fields(spec)}
        stand_in = _Recorded(**spec_fields, family_facts=known)
        return Setup(checkpoint, checkpoint.fingerprint(), hardware, settings, tuple(methods), stand_in, asked)
    return None
