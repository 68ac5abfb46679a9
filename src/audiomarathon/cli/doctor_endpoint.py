"""Whether an endpoint answers, takes the key and knows the model: `audiomarathon doctor --model openai`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from audiomarathon.cli.doctor_checks import Finding
from audiomarathon.endpoint.client import Endpoint, EndpointError
from audiomarathon.errors import ModelError, SettingsError

_LIMIT_S = 20.0
_SHOWN = 8


def examine_endpoint(model: str, env: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Look at address, key, prices and the endpoint's list of models; no model is asked, so nothing costs."""
    env = os.environ if env is None else env
    try:
        endpoint = Endpoint.from_env(model or "unnamed", env)
    except SettingsError as error:
        yield Finding(False, str(error), fatal=True)
        return
    endpoint.limit_s = _LIMIT_S
    address = endpoint.url + (f", by way of the proxy {endpoint.via}" if endpoint.via else "")
    yield Finding(True, f"OPENAI_BASE_URL: {address}" if env.get("OPENAI_BASE_URL") else f"the default, {address}")
    yield Finding(True, f"OPENAI_API_KEY is {'set' if endpoint.key else 'not set, none is sent'}")
    try:
        names = endpoint.models()
    except ModelError as error:
        yield Finding(False, str(error), fatal=True)
    except EndpointError as error:
        remedy = "is the server up, and OPENAI_BASE_URL its address up to and with /v1?"
        yield Finding(False, f"{endpoint.host}: {error}", remedy, fatal=True)
    else:
        yield Finding(True, f"{endpoint.host} answers" + (", and takes the key" if endpoint.key else ""))
        yield _named(model, names)


def _named(model: str, names: list[str]) -> Finding:
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    if not model:
        return Finding(False, f"no model is named; it lists: {shown or 'none'}", "--model-path NAME (MODEL_PATH)")
    if model in names:
        return Finding(True, f"it lists {model}; whether that takes audio, only a run tells")
    return Finding(
        False, f"it does not list {model}; it lists: {shown or 'none'}", "some endpoints accept unlisted names"
    )
