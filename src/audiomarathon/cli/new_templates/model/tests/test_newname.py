"""The model answers, alone and in a batch, with and without pruning."""

import json
from pathlib import Path

from audiomarathon import evaluate


def test_replies_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    replies = []
    for size in (1, 2):
        where = {"data": "mini", "results": str(tmp_path / str(size)), "limit": 2, "timing": False, "batch_size": size}
        whole, pruned = evaluate("desed", model="newname", method=["base", "frame:0.5"], **where)
        lines = [(result.folder / "samples.jsonl").read_text().splitlines() for result in (whole, pruned)]
        records = [{row["id"]: row for row in map(json.loads, rows)} for rows in lines]
        for id_, row in records[0].items():
            assert records[1][id_]["kept_audio_tokens"] < row["audio_tokens"]
        replies.append([{id_: row["reply"] for id_, row in rows.items()} for rows in records])
    assert replies[0] == replies[1]
