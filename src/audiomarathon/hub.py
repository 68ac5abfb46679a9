"""What the hub's client raises, as one line that says what to do; for checkpoints and data sets alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from audiomarathon.errors import AudioMarathonError


@contextmanager
def hub_errors(name: str, kind: type[AudioMarathonError], *, what: str, fetch: str, instead: str) -> Iterator[None]:
    """Turn what the hub's client raises into one line.

    Parameters
    ----------
    name
        The hub's id, with its revision where one is named.
    kind
        The error to raise.
    what
        `model` or `data set`.
    fetch
        What goes on where the download stopped.
    instead
        What to do without the hub.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    web_error: type[Exception] = HfHubHTTPError.__mro__[1]  # of the hub's HTTP library, another from version to version
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
            f"{repository}: the hub knows no such {what}; if it is private, `export HF_TOKEN=…` with a token that may "
            f"read it; else {instead}"
        ) from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        hint = "the hub limits anonymous downloads, `export HF_TOKEN=…` raises the limit; " if status == 429 else ""
        raise kind(f"{repository}: the hub answered {status}: {hint}{fetch}, it goes on where it stopped") from None
    except (LocalEntryNotFoundError, web_error):
        raise kind(
            f"{repository} is not here yet, and the hub cannot be reached (no network, a proxy, HF_ENDPOINT or "
            f"HF_HUB_OFFLINE?); {fetch} where it can, or {instead}"
        ) from None
    except OSError as error:
        raise kind(
            f"{repository}: download failed ({error}); {fetch}, it goes on where it stopped, or {instead}"
        ) from None
