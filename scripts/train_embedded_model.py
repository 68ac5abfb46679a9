"""Train the embedded model from scratch, on the training split of the synthetic world, on a CPU.

    python scripts/train_embedded_model.py --output src/audiomarathon/embedded/checkpoint

1. Render short clips, cut them into the two-second windows that the audio encoder works on.
2. Train the encoder to name the sound at each of its tokens (`embedded_training/encoder.py`).
3. Encode every window once. Train the decoder on sequences of encoded windows and the tasks' prompts, short ones
   first, then up to 2,000 tokens (`embedded_training/decoder.py`).
4. Save in the hub's layout, bfloat16, and run the mini benchmark, whose clips come from the world's other split.

The same seed, versions, thread count and kind of processor give the same weights. The shipped checkpoint has seed 0, on
one thread, in 16 minutes.
"""

import argparse
import logging
import time
from pathlib import Path

import numpy as np
import torch
from embedded_training.architecture import WIDTH, build_model, save_checkpoint
from embedded_training.decoder import Hints, Stage, train_decoder
from embedded_training.encoder import encode_all, token_accuracy, train_encoder
from embedded_training.held_out import held_out_figures
from embedded_training.sequences import Sequences
from embedded_training.tokenizer import build_tokenizer
from embedded_training.windows import make_windows

log = logging.getLogger("train_embedded_model")

ENCODER_STEPS = 300
FULL_LENGTH = 3200  # two minutes of audio and a prompt
CURRICULUM = (
    # Without masks (`blinkers`), the model learns to find an option's word in the audio, but not the option's letter.
    Stage(length=350, batch=16, steps=350, rate=2e-3, bfloat16=False, blinkers=0.0),
    # Masks let only the options attend to the audio, so the reply must read the options: the model learns letters.
    Stage(length=350, batch=16, steps=450, rate=1.5e-3, bfloat16=False, blinkers=0.9, transcripts=0.2),
    Stage(length=600, batch=9, steps=180, rate=1.2e-3, reach=FULL_LENGTH, blinkers=0.7),
    Stage(length=1000, batch=5, steps=200, rate=1e-3, reach=FULL_LENGTH, blinkers=0.4),
    # No masks, as in use: a model trained only with masks is right in training and wrong on real prompts.
    Stage(length=1000, batch=5, steps=150, rate=1e-3, blinkers=0.0),
    Stage(length=2000, batch=3, steps=60, rate=4e-4, blinkers=0.0),
)


def main() -> None:
    """Run all stages of the training, and save a checkpoint after each stage of the decoder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the checkpoint; its content is replaced")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; 2 are no faster on busy cores")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every number of steps, for a quick trial")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    begin = time.perf_counter()

    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    log.info("%d parameters, %d tokens", sum(p.numel() for p in model.parameters()), len(tokenizer))
    windows = make_windows(arguments.seed)
    log.info("%d windows (%.0f s)", len(windows.mels), time.perf_counter() - begin)

    steps = max(20, round(ENCODER_STEPS * arguments.scale))
    train_encoder(model, tokenizer, windows, steps=steps, generator=torch.Generator().manual_seed(arguments.seed))
    # Round to bfloat16, the shipped checkpoint's precision, so that the decoder trains on the same input as in use.
    encoded = encode_all(model, windows).to(torch.bfloat16).float()
    log.info("tokens right: %s", token_accuracy(model, tokenizer, windows, encoded))

    sequences = Sequences(windows, tokenizer, np.random.default_rng(arguments.seed))
    torch.manual_seed(arguments.seed)  # independent of the draws of earlier stages
    hints = Hints(WIDTH)
    for stage in CURRICULUM:
        train_decoder(model, hints, sequences, encoded, stage.scaled(arguments.scale))
        save_checkpoint(model, tokenizer, arguments.output)
        log.info("saved after length %d (%.0f s)", stage.length, time.perf_counter() - begin)
    log.info("held out: %s", held_out_figures(arguments.output))


if __name__ == "__main__":
    main()
