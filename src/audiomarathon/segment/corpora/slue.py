"""SLUE-VoxPopuli: utterances from the European Parliament, with the named entities in each."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

from audiomarathon.benchmarks.audiomarathon.slue import Slue
from audiomarathon.errors import DataError
from audiomarathon.segment.corpus import DISTRACTORS, Corpus, Group, Row, Source, below, drawn, question, table

COLUMNS = ("id", "normalized_text", "normalized_ner")
#: {OntoNotes' type of entity: one of the benchmark's seven types}; no question is asked about other types.
TYPES = {
    "GPE": "PLACE", "LOC": "PLACE", "CARDINAL": "QUANT", "MONEY": "QUANT", "ORDINAL": "QUANT", "PERCENT": "QUANT",
    "QUANTITY": "QUANT", "ORG": "ORG", "DATE": "WHEN", "TIME": "WHEN", "NORP": "NORP", "PERSON": "PERSON", "LAW": "LAW",
}  # fmt: skip
_ASKED = {
    "PLACE": "places",
    "QUANT": "quantities",
    "ORG": "organisations",
    "WHEN": "dates and times",
    "NORP": "nationalities or political groups",
    "PERSON": "persons",
    "LAW": "laws",
}


class SlueCorpus(Corpus):
    """Join utterances of one split in the order of their ids, so that a debate stays together.

    The question asks which of four entities of one type is named. The wrong options are entities of the corpus that do
    not occur in the clip's transcript.
    """

    task = "slue"
    title = "SLUE-VoxPopuli"
    layout = """\
  slue-voxpopuli_dev.tsv     tab-separated: id, raw_text, normalized_text, speaker_id, split, raw_ner, normalized_ner
  dev/<id>.ogg               (also slue-voxpopuli_fine-tune.tsv and fine-tune/; the blind test set has no entities)"""
    example = "slue-voxpopuli -o data/SLUE"
    seconds = (165.0, 300.0)
    metadata_file = Slue.metadata_file

    def groups(self) -> list[Group]:
        """Return one group of utterances per split."""
        groups = []
        self._named: dict[str, set[str]] = {}  # phrases by type of entity, in the whole corpus
        for file in self.tables(COLUMNS) or [self.the_one([], f"table (.tsv) with the columns {', '.join(COLUMNS)}")]:
            split = re.sub(r"^slue-voxpopuli_", "", file.stem)
            audio = {path.stem: path for path in below(file.parent, [".ogg", ".wav", ".flac"]) if _is_of(path, split)}
            sources = []
            for name, entities, text in _utterances(file):
                for kind, phrase in entities:
                    self._named.setdefault(kind, set()).add(phrase)
                if name in audio:
                    path = audio[name]
                    sources.append(Source(path, self.name(path), {"entities": entities, "text": text}))
                else:
                    self.left_out.append((name, f"is in {file.name}, but the file is missing"))
            groups.append(Group(split, sorted(sources, key=lambda source: source.name)))
        return groups

    def rows(self, clip: Row, chance: random.Random) -> list[Row]:
        """Return a row with a question: which entity is named in the clip? Wrong options are not named in it."""
        text = f" {' '.join(source['facts']['text'] for source in clip['sources'])} "
        entities = [tuple(entity) for source in clip["sources"] for entity in source["facts"]["entities"]]
        absent = {
            kind: sorted(phrase for phrase in self._named[kind] if f" {phrase} " not in text)
            for kind in {kind for kind, _ in entities}
        }
        askable = sorted({entity for entity in entities if len(absent[entity[0]]) >= DISTRACTORS})
        if not askable:
            return []
        kind, phrase = chance.choice(askable)
        options, letter = drawn(phrase, absent[kind], chance)
        facts = {
            "task_name": "named_entity_recognition",
            "dataset_name": "slue-voxpopuli",
            "entity_count": len(entities),
            "entity_types": sorted({kind for kind, _ in entities}),
            "audio_duration_info": f"{clip['seconds']:.1f} s",
            "uniq_id": Path(clip["path"]).stem,
        }
        return question(clip, f"Which of these {_ASKED[kind]} is named in the recording?", options, letter, **facts)


def _is_of(path: Path, split: str) -> bool:
    """Tell whether a path is in the folder of a split; in some copies `fine-tune/` is called `finetune/`."""
    wanted = split.replace("-", "")
    return any(part.replace("-", "").removesuffix("wav") == wanted for part in path.parts[:-1])


def _utterances(file: Path) -> Iterator[tuple[str, list[tuple[str, str]], str]]:
    """Yield (utterance's id, its entities as (type, words), its text)."""
    for place, row in table(file, COLUMNS, exact=True):
        text = row["normalized_text"]
        try:
            spans = ast.literal_eval(row["normalized_ner"].strip() or "None") or []
            entities = [(str(kind), _words(text[start : start + length])) for kind, start, length in spans]
        except (ValueError, TypeError, SyntaxError) as error:
            raise DataError(f"{place}: normalized_ner is not a list of [type, start, length]") from error
        yield row["id"], [(TYPES[kind], words) for kind, words in entities if kind in TYPES and words], _words(text)


def _words(text: str) -> str:
    return " ".join(re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower()))
