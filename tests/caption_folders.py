"""Write small data folders in the layout of Clotho and AudioCaps, and the folder of a tiny sentence encoder."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from task_folders import write_clip
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "dog", "barks", "rain", "falls", "##s"]
CAPTIONS = {
    "Rain on a tin roof.wav": (
        "Rain is falling on a metal roof.",
        "Rain drums on tin while the wind blows.",
        "A steady rain falls on a roof.",
        "Heavy rain hits a tin roof.",
        "Water is falling on metal.",
    ),
    "Café, evening.wav": (
        "People are talking in a cafe.",
        "A crowd of people is talking and cups clatter.",
        "Many people talk at once in a room.",
        "Voices and cups in a busy cafe.",
        "People chat while dishes clatter.",
    ),
    'dog "barks".wav': (
        "A dog barks twice in the distance.",
        "A dog is barking while a car passes.",
        "A dog barks and a car drives by.",
        "A far dog barks.",
        "Two barks of a dog are heard.",
    ),
}


def table(file: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a CSV file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([columns, *rows])


def clotho_folder(
    root: Path,
    captions: Mapping[str, Sequence[str]] = CAPTIONS,
    *,
    split: str = "evaluation",
    place: str = "{split}",
    clips: Mapping[str, Path] | None = None,
) -> Path:
    """Write a folder in Clotho's layout and return it. Its clips are tones unless `clips` gives recordings."""
    columns = ("file_name", *(f"caption_{number}" for number in range(1, 6)))
    table(root / f"clotho_captions_{split}.csv", columns, [(name, *texts) for name, texts in captions.items()])
    for number, name in enumerate(captions):
        target = root / place.format(split=split) / name
        if clips:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(clips[name].read_bytes())
        else:
            write_clip(target, hertz=300.0 + 100 * number)
    return root


def tiny_bert(folder: Path) -> Path:
    """Make a folder with a random BERT of two layers and its tokenizer of :data:`WORDS`, and return it."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=128, initializer_range=0.5, **size))
    model.save_pretrained(folder)
    return folder
