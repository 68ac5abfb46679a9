"""Make the embedded tokenizer: byte-level BPE like Qwen's, trained on the tasks' prompts, with Qwen's chat template."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from audiomarathon.embedded import world

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_bos|>",
    "<|AUDIO|>",
    "<|audio_eos|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
)
# Qwen2's pre-tokenisation, as the hub's tokenizer.json has it.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_bos|><|IMAGE|><|vision_eos|>"
    "{% elif content['type'] == 'audio' or 'audio' in content or 'audio_url' in content %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif content['type'] == 'video' or 'video' in content %}<|vision_bos|><|VIDEO|><|vision_eos|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LETTER_INSTRUCTION = "Listen to the audio and answer with the letter of the correct option only."
TRANSCRIBE = "Transcribe the speech in the audio exactly. Output the transcript only, nothing else."
PROMPT_START = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|audio_bos|>"  # the audio follows
)
PROMPT_END = "<|im_end|>\n<|im_start|>assistant\n"


def choice_prompt(question: str, options: list[str]) -> str:
    """Return the text of a multiple-choice prompt, exactly as the tasks write it."""
    lines = "\n".join(f"{letter}. {option}" for letter, option in zip("ABCDE", options, strict=False))
    return f"{question}\n\n{lines}\n\n{LETTER_INSTRUCTION}"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train and return a tokenizer in which every word of the mini benchmark is a single token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
        model_max_length=32768,
        extra_special_tokens={
            "audio_token": "<|AUDIO|>",
            "audio_bos_token": "<|audio_bos|>",
            "audio_eos_token": "<|audio_eos|>",
            "image_token": "<|IMAGE|>",
            "video_token": "<|VIDEO|>",
            "vision_bos_token": "<|vision_bos|>",
            "vision_eos_token": "<|vision_eos|>",
        },
    )


def _corpus() -> list[str]:
    texts = ["system\nYou are a helpful assistant.", "user\n", "assistant\n", TRANSCRIBE]
    for task, question in world.QUESTIONS.items():
        for category in world.FACTS if task == "race" else ("",):
            options = [label.option for label in world.labels_of(task)]
            texts.append(choice_prompt(question.format(category=category), options))
            texts.extend(f"A. {option}" for option in options)
    # With and without the leading space: a reply may start with a word, an option's line never does.
    spoken = (*world.WORDS, *world.cues())
    texts.extend(form for word in spoken for form in (word, f" {word}"))
    return texts * 3  # a merge needs its pair more than once
