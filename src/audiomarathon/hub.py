"""Turn errors of the Hugging Face hub's client into one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from audiomarathon.errors import AudioMarathonError


@contextmanager
def hub_errors(name: str, kind: type[AudioMarathonError], *, what: str, fetch: str, instead: str) -> Iterator[None]:
    """Inside the block, turn an error of the Hugging Face hub's client into a one-line error that says what to do.

    Parameters
    ----------
    name
        The hub id, with its revision if given.
    kind
        The error class to raise.
    what
        `model` or `data set`.
    fetch
        Words for the message: how to start or continue the download.
    instead
        Words for the message: what to do without the hub.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # The HTTP library's base error; the library differs between versions.
    web_error: type[Exception] = HfHubHTTPError.__mro__[1]
    repository, _, revision = name.partition("@")
    try:
        yield
    except HFValidationError as error:
        raise kind(f"{name}: not a hub id of the form 'organisation/name' ({error})") from None
    except GatedRepoError:
        raise kind(
            f"{repository} is gated: accept its terms at https://huggingface.co/{repository}, make a token at "
            f"https://huggingface.co/settings/tokens, then `export HF_TOKEN=…` and {fetch}"
        ) from None
    except RevisionNotFoundError:
        raise kind(f"{repository}: the hub has no revision {revision!r}") from None
    except RepositoryNotFoundError:
        raise kind(
            f"{repository}: the hub has no such {what}; if it is private, `export HF_TOKEN=…` with a token that may "
            f"read it; else {instead}"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        hint = "the hub limits anonymous downloads; `export HF_TOKEN=…` raises the limit; " if status == 429 else ""
        raise kind(f"{repository}: the hub answered {status}: {hint}{fetch} to resume the download") from None
    except (LocalEntryNotFoundError, web_error):
        raise kind(
            f"{repository} is not downloaded, and the hub cannot be reached (no network, a proxy, HF_ENDPOINT or "
            f"HF_HUB_OFFLINE?); {fetch} on a machine with access, or {instead}"
        ) from None
    except OSError as error:
        raise kind(f"{repository}: download failed ({error}); {fetch} to resume it, or {instead}") from None
