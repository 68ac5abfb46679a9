"""A local judge: any chat model that transformers loads, in batches, with greedy decoding."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from audiomarathon.errors import ModelError
from audiomarathon.judges.judge import Judge, Reply
from audiomarathon.judges.judgements import Request
from audiomarathon.models.checkpoint import Checkpoint, find_checkpoint


@dataclass
class LocalJudge(Judge):
    """A judge that is a local chat model, from a folder or the hub; it runs on GPUs if there are any.

    Attributes
    ----------
    source
        A folder or a hub id.
    batch_size
        Requests per `generate` call. It changes answers at most by rounding errors.
    download
        Whether missing files are downloaded from the hub.
    """

    key: str
    source: str
    batch_size: int = 8
    download: bool = True

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The files of the model's checkpoint."""
        return find_checkpoint(self.source, download=self.download, named="name a folder that holds it: --with FOLDER")

    @cached_property
    def _dtype(self) -> str:
        import torch

        return "bfloat16" if torch.cuda.is_available() else "float32"

    @cached_property
    def _fingerprint(self) -> str:
        return self.checkpoint.fingerprint()

    def identity(self) -> Mapping[str, Any]:
        """Return everything that the judge's answers depend on: checkpoint, precision and temperature.

        The checkpoint's fingerprint covers the chat template.
        """
        model = {"model": self.checkpoint.name, "fingerprint": self._fingerprint, "dtype": self._dtype}
        return {"backend": "local", **model, "temperature": 0}

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """(The judge's model, its tokenizer), loaded at first use."""
        import torch
        from transformers import GenerationConfig

        from audiomarathon.models.loading import causal_lm

        path = self.checkpoint.path
        model, tokenizer = causal_lm(path, dtype=self._dtype, device_map="auto" if torch.cuda.is_available() else "")
        if not tokenizer.chat_template:
            raise ModelError(f"{path}: has no chat template, so it cannot judge; name an instruct model")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        ends = model.generation_config.eos_token_id or tokenizer.eos_token_id
        model.generation_config = GenerationConfig(
            do_sample=False, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id
        )
        return model, tokenizer

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Reply]]:
        """Generate answers in batches of requests of similar length; yield each request with its answer.

        A request that is too long for the model gets an error as its answer.
        """
        model, _tokenizer = self._loaded
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        fitting = []
        for request in requests:
            tokens = self._tokens(request)
            room = most - request.max_new_tokens if most else len(tokens)
            if len(tokens) > room:
                asked = f"{len(tokens):,} tokens of prompt and {request.max_new_tokens:,} of answer"
                yield request, Reply(error=f"request too long: {asked}; {self.checkpoint.name} allows {most:,} in all")
            else:
                fitting.append((request, tokens))
        fitting.sort(key=lambda pair: (pair[0].max_new_tokens, -len(pair[1])))
        for start in range(0, len(fitting), self.batch_size):
            batch = fitting[start : start + self.batch_size]
            yield from zip((request for request, _tokens in batch), self._answers(batch), strict=True)

    def _tokens(self, request: Request) -> list[int]:
        """Return the token ids of a request's prompt, written in the model's chat template.

        Special tokens in the request's text are broken up, since only the template may use them. If the template has no
        system turn (such as Gemma's), the user's turn begins with the system text.
        """
        from jinja2 import TemplateError

        from audiomarathon.models.chat import break_control_tokens

        tokenizer = self._loaded[1]
        turns = [{**turn, "content": break_control_tokens(turn["content"], tokenizer)} for turn in request.messages]
        try:
            encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
        except TemplateError:
            if turns[0]["role"] != "system":
                raise
            turns[:2] = [{"role": "user", "content": f"{turns[0]['content']}\n\n{turns[1]['content']}"}]
            encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])

    def _answers(self, batch: Sequence[tuple[Request, list[int]]]) -> list[Reply]:
        import torch

        from audiomarathon.models.kernels import attention_kernels

        model, tokenizer = self._loaded
        begin = time.perf_counter()
        inputs = tokenizer.pad({"input_ids": [tokens for _request, tokens in batch]}, return_tensors="pt")
        limit = max(request.max_new_tokens for request, _tokens in batch)
        try:
            with torch.inference_mode(), attention_kernels():
                output = model.generate(**inputs.to(model.device), max_new_tokens=limit)
        except torch.OutOfMemoryError as error:
            text = f"{self.key}: a batch of {len(batch)} requests does not fit into GPU memory; lower --batch-size"
            raise ModelError(text) from error
        seconds = (time.perf_counter() - begin) / len(batch)
        ends = model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        replies = []
        for (request, tokens), row in zip(batch, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            new = row[: request.max_new_tokens]
            end = next((place for place, token in enumerate(new) if token in ends), None)
            new = new if end is None else new[: end + 1]
            text = tokenizer.decode(new, skip_special_tokens=True)
            replies.append(Reply(text, "length" if end is None else "stop", None, len(tokens), len(new), seconds))
        return replies
