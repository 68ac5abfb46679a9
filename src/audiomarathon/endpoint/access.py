"""How an endpoint is reached: its address, its key, the proxy between; and how its key stays out of everything else."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from audiomarathon.errors import SettingsError

DEFAULT_URL = "https://api.openai.com/v1"
_LOCAL = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
_SHOWN = 5  # so many characters of the key in a row are no secret: services themselves show that much


def read_url(env: Mapping[str, str]) -> str:
    """Return the endpoint's address.

    Raises
    ------
    SettingsError
        When it is none, or holds what belongs into `OPENAI_API_KEY`.
    """
    url = (env.get("OPENAI_BASE_URL") or DEFAULT_URL).strip().rstrip("/")
    try:
        parts = urlsplit(url)
        httpx2.URL(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, httpx2.InvalidURL):
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingsError("OPENAI_BASE_URL: allowed is an address such as http://localhost:8000/v1")
    if "@" in parts.netloc:
        raise SettingsError("OPENAI_BASE_URL holds a password: put the key into OPENAI_API_KEY instead")
    if parts.query or parts.fragment:
        raise SettingsError(f"OPENAI_BASE_URL holds a query: allowed is an address such as {DEFAULT_URL}")
    try:
        via = proxy_of(parts)
        httpx2.URL(via.geturl() if via else url)
    except (ValueError, httpx2.InvalidURL):
        raise SettingsError(f"{parts.scheme}_proxy: allowed is an address such as http://proxy:3128") from None
    if via and (via.scheme != "http" or not via.hostname):
        raise SettingsError(f"{parts.scheme}_proxy names a proxy of the kind {via.scheme!r}; allowed: http")
    return url


def read_key(env: Mapping[str, str]) -> str:
    """Return the key, or "" where there is none.

    Raises
    ------
    SettingsError
        When it holds what no header can.
    """
    key = env.get("OPENAI_API_KEY", "").strip()
    if not key.isascii() or not key.isprintable():
        raise SettingsError("OPENAI_API_KEY holds a character that no key has; it is not shown")
    return key


def without_key(text: str, key: str) -> str:
    """Return a text in which no part of a key is left that is long enough to tell anything."""
    size = min(_SHOWN + 1, len(key))
    parts = {key[start : start + size] for start in range(len(key) - size + 1)} - {""}
    hidden = {at + place for at in range(len(text)) if text[at : at + size] in parts for place in range(size)}
    blank = "".join("\0" if at in hidden else character for at, character in enumerate(text))
    return re.sub("\0+", "***", blank) if hidden else text


def proxy_of(url: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for an address; this machine itself is asked directly."""
    host = url.hostname or ""
    named = getproxies().get(url.scheme)
    if not named or _is_this_machine(host) or proxy_bypass(host):
        return None
    return urlsplit(named if "://" in named else f"http://{named}")


def _is_this_machine(host: str) -> bool:
    """Whether a host is this machine, however that is spelled; no name server is asked, it may be out of reach."""
    name = host.rstrip(".").lower()
    if name in (*_LOCAL, socket.gethostname().lower()) or name.endswith(".localhost"):
        return True
    try:
        kind, *_, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[0]
        address = ip_address(str(place[0]).partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_loopback or address.is_unspecified:
            return True
        with socket.socket(kind, socket.SOCK_DGRAM) as way:
            way.connect(place)  # sends nothing; the way to an address of this machine begins at that address
            return bool(way.getsockname()[0] == place[0])
    except (OSError, ValueError):  # a name; or an address to which there is no way
        return False
