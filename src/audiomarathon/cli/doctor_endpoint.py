"""Check that an endpoint answers, accepts the key and lists the model, for `audiomarathon doctor --model openai`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from audiomarathon.cli.doctor_checks import Check
from audiomarathon.endpoint.client import Endpoint, EndpointError
from audiomarathon.errors import ModelError, SettingsError

_LIMIT_S = 20.0
_SHOWN = 8


def examine_endpoint(model: str, env: Mapping[str, str] | None = None) -> Iterator[Check]:
    """Check the address, the key and the list of models. No model is called, so this costs nothing."""
    env = os.environ if env is None else env
    try:
        endpoint = Endpoint.from_env(model or "unnamed", env)
    except SettingsError as error:
        yield Check(False, str(error), fatal=True)
        return
    endpoint.limit_s = _LIMIT_S
    address = endpoint.url + (f", through the proxy {endpoint.via}" if endpoint.via else "")
    yield Check(True, f"OPENAI_BASE_URL: {address}" if env.get("OPENAI_BASE_URL") else f"the default, {address}")
    yield Check(True, f"OPENAI_API_KEY is {'set' if endpoint.key else 'not set; no key is sent'}")
    try:
        names = endpoint.models()
    except ModelError as error:
        yield Check(False, str(error), fatal=True)
    except EndpointError as error:
        remedy = "is the server up, and OPENAI_BASE_URL its address up to and with /v1?"
        yield Check(False, f"{endpoint.host}: {error}", remedy, fatal=True)
    else:
        yield Check(True, f"{endpoint.host} answers" + (", and accepts the key" if endpoint.key else ""))
        yield _named(model, names)


def _named(model: str, names: list[str]) -> Check:
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    if not model:
        return Check(
            False, f"no model is named; the endpoint lists: {shown or 'none'}", "--model-path NAME (MODEL_PATH)"
        )
    if model in names:
        return Check(True, f"it lists {model}; only a run shows whether that model accepts audio")
    return Check(
        False, f"it does not list {model}; it lists: {shown or 'none'}", "some endpoints accept unlisted names"
    )
