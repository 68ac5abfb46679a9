#!/usr/bin/env bash
# Bring Clotho and MMAU-Pro into AUDIOMARATHON_DATA: scripts/download_datasets.sh at the root explains.
exec "$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd)/../../scripts/download_datasets.sh" "$@"
