"""Hugging Face folders: the model that a config.json names, without the hub or foreign code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortune.core.errors import BackendMissing, BadModel, gist
from ortune.core.facts import TensorSpec
from ortune.core.plugins import user_function

_LENGTH, _TARGET, _SECOND = 16, 8, 16000
"""Made-up tokens, tokens of a decoder, and samples of sound."""


def is_folder(source: str) -> bool:
    """Say whether a text names the folder of a transformers model."""
    return (Path(source) / "config.json").is_file()


def load(source: str) -> Any:
    """Return the model in float32, its weights from the folder alone.

    Raises:
        BackendMissing: transformers is not installed.
        BadModel: The folder holds no model that this release of it knows.
    """
    try:
        import transformers
    except ImportError:
        raise BackendMissing(
            f"{source} is a folder of transformers, which is not installed",
            fix="pip install ortune[transformers]",
        ) from None
    import torch

    try:
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=True)
        names = getattr(config, "architectures", None) or ["AutoModel"]
        kind = getattr(transformers, names[0], transformers.AutoModel)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        # Attention as plain operators: what fuses them afterwards knows these.
        model = kind.from_pretrained(
            source,
            config=config,
            local_files_only=True,
            dtype=torch.float32,
            attn_implementation="eager",
        )
    except Exception as error:
        raise BadModel(
            f"transformers does not load {source}: {gist(user_function.reason(error))}",
            fix="give a folder that save_pretrained wrote; code of its own is never run",
        ) from error
    return model.eval()


def inputs(model: Any) -> list[TensorSpec]:
    """Return what a model of transformers takes, dynamic dimensions by name; empty if unknown."""
    taken = inspect.signature(model.forward).parameters
    specs = {spec.name: spec for spec in _known(model.config)}
    first = getattr(model, "main_input_name", "")
    beside = {
        "input_ids": ("attention_mask", "token_type_ids"),
        "decoder_input_ids": (),
    }
    names = [first, *beside.get(first, ())]
    if getattr(model.config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    return [specs[name] for name in names if name in taken and name in specs]


def sizes(model: Any) -> dict[str, int]:
    """Return dynamic dimension -> the size that an example has."""
    most = getattr(model.config, "max_position_embeddings", None) or _LENGTH
    return {"batch": 2, "sequence": min(_LENGTH, most), "target": _TARGET, "samples": _SECOND}


def _known(config: Any) -> Iterator[TensorSpec]:
    words = getattr(config, "vocab_size", None)
    tokens: tuple[str, ...] = ("batch", "sequence")
    yield TensorSpec("input_ids", "int64", tokens, words)
    yield TensorSpec("attention_mask", "int64", tokens)
    if getattr(config, "type_vocab_size", 0):
        yield TensorSpec("token_type_ids", "int64", tokens)
    yield TensorSpec("decoder_input_ids", "int64", ("batch", "target"), words)
    side = getattr(config, "image_size", None)
    if side:
        high, wide = side if isinstance(side, (list, tuple)) else (side, side)
        channels = getattr(config, "num_channels", 3)
        yield TensorSpec("pixel_values", "float32", ("batch", channels, high, wide))
    yield TensorSpec("input_values", "float32", ("batch", "samples"))
