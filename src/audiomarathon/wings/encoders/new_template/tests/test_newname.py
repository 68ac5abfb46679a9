"""Check that the encoder follows X-ARES' interface, and that its features show pitch."""

import torch

from audiomarathon.encoders import check_encoder, load_encoder


def test_the_interface_is_kept() -> None:
    assert not check_encoder(load_encoder("newname")).errors  # by name: the package has to be installed


def test_a_higher_tone_is_in_a_higher_band() -> None:
    time = torch.arange(16_000) / 16_000
    tones = torch.stack([torch.sin(2 * torch.pi * hertz * time) for hertz in (200.0, 2000.0)])
    low, high = (features.mean(0).argmax() for features in load_encoder("newname").encode(tones))
    assert low < high
