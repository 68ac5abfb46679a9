"""The Qwen2.5-Omni thinker asked without a chat template: the audio, then the text."""

import torch
from transformers import AutoTokenizer, WhisperFeatureExtractor
from transformers import Qwen2_5OmniThinkerForConditionalGeneration as Thinker

from audiomarathon.models.audio_lm import AudioLM
from audiomarathon.models.loading import check_loading
from audiomarathon.models.prompt import Inputs
from audiomarathon.models.registry import ModelSpec


class NewName(AudioLM):
    @classmethod
    def load(cls, path, *, device, dtype, attn_implementation, device_map=""):
        how = {"dtype": getattr(torch, dtype), "attn_implementation": attn_implementation}
        model, info = Thinker.from_pretrained(path, device_map=device_map or device, output_loading_info=True, **how)
        check_loading(path, info)  # refuse weights that are missing or left over
        return cls(model, AutoTokenizer.from_pretrained(path), WhisperFeatureExtractor.from_pretrained(path))

    decoder = property(lambda self: self.model.model.language_model)  # owns .layers
    audio_tower = property(lambda self: self.model.model.audio_tower)  # its forward is timed as the stage `encoder`
    lm_head = property(lambda self: self.model.lm_head)

    def prepare(self, prompts):
        clips = [clip for prompt in prompts for clip in prompt.clips]
        width = max(len(clip) for clip in clips) + self.feature_extractor.n_fft  # so that a batch changes no last frame
        how = {"padding": "max_length", "max_length": width, "truncation": False, "return_attention_mask": True}
        audio = self.feature_extractor(clips, sampling_rate=self.sampling_rate, return_tensors="pt", **how)
        audio = audio.to(self.device, self.model.dtype)
        lengths = (((audio["attention_mask"].sum(-1) - 1) // 2 + 1 - 2) // 2 + 1).tolist()  # audio tokens of each clip
        places = iter("<|audio_bos|>" + "<|AUDIO|>" * length + "<|audio_eos|>" for length in lengths)
        texts = ["".join(next(places) for _ in prompt.clips) + prompt.text + "\n" for prompt in prompts]
        text = self.tokenizer(texts, padding=True, padding_side="left", return_tensors="pt").to(self.device)
        features, mask = audio["input_features"], audio["attention_mask"]
        tensors = {**text, "input_features": features, "feature_attention_mask": mask}
        audio_mask = text["input_ids"] == self.model.config.audio_token_id
        return Inputs(tensors, audio_mask, tuple(prompt.seed for prompt in prompts))


SPEC = ModelSpec("newname", "newname.model:NewName", "embedded", 25, "Qwen2.5-Omni without a template")
