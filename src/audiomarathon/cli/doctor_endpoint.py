"""Whether an endpoint answers, takes the key and knows the model: `audiomarathon doctor --model openai`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from audiomarathon.cli.doctor_checks import Finding
from audiomarathon.endpoint.access import DEFAULT_URL, proxy_of, read_key, read_url
from audiomarathon.endpoint.client import FAULTS, Endpoint
from audiomarathon.errors import ModelError, SettingsError

_LIMIT_S = 20.0
_SHOWN = 8


def examine_endpoint(model: str, env: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Look at address, key and the endpoint's list of models; nothing is asked of a model, and nothing costs."""
    env = os.environ if env is None else env
    try:
        url, key = read_url(env), read_key(env)
    except SettingsError as error:
        yield Finding(False, str(error), fatal=True)
        return
    via = proxy_of(urlsplit(url))
    way = f", by way of the proxy {via.hostname}" if via else ""
    yield Finding(True, f"OPENAI_BASE_URL: {url}{way}" if env.get("OPENAI_BASE_URL") else f"the default, {url}{way}")
    if key or url != DEFAULT_URL:
        yield Finding(True, f"OPENAI_API_KEY is {'set' if key else 'not set, none is sent'}")
    else:
        yield Finding(False, "OPENAI_API_KEY is not set", "export OPENAI_API_KEY=…", fatal=True)
        return
    endpoint = Endpoint(model, url, key, limit_s=_LIMIT_S)
    try:
        names = endpoint.models()
    except ModelError as error:
        yield Finding(False, str(error), fatal=True)
    except FAULTS as error:
        remedy = "is the server up, and OPENAI_BASE_URL its address up to and with /v1?"
        yield Finding(False, f"{endpoint.host}: {endpoint.clean(error)}", remedy, fatal=True)
    else:
        yield Finding(True, f"{endpoint.host} answers, and takes the key" if key else f"{endpoint.host} answers")
        yield _named(model, names)


def _named(model: str, names: list[str]) -> Finding:
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    if not model:
        return Finding(False, f"no model is named; it lists: {shown or 'none'}", "--model-path NAME (MODEL_PATH)")
    if model in names:
        return Finding(True, f"it lists {model}; whether that takes audio, only a run tells")
    return Finding(False, f"it does not list {model}; it lists: {shown or 'none'}", "some endpoints take names beside")
