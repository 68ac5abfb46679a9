"""An audio LLM of trained weights (Whisper base's encoder, SmolLM2) passes the certificate, method by method."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_weights import real_qwen2_audio

from audiomarathon.certify.certificate import certify
from audiomarathon.compression.method import Base
from audiomarathon.compression.registry import all_methods
from audiomarathon.engine.engine import open_local
from audiomarathon.settings import RunSettings

pytestmark = pytest.mark.real


def test_every_method_passes_the_certification_checks_on_trained_weights(tmp_path: Path) -> None:
    settings = RunSettings.read({}, model_path=str(real_qwen2_audio(tmp_path / "qwen2-audio")), device="cpu")
    certificate = certify(open_local("qwen2-audio", settings, ()), 2.0)
    findings = {check.name: finding for check, finding in certificate.rows}
    for name, finding in findings.items():
        print(f"{name}: {finding.verdict}; {finding.figure}")  # noqa: T201
    assert {name for name, check_finding in findings.items() if check_finding.verdict != "pass"} == {"adapter"}
    checked = {name.split()[-1] for name in findings if name.startswith(("dropping", "pressing"))}
    assert checked == {method.key for method in all_methods() if not isinstance(method, Base)}
