"""A folder that onnxruntime-genai opens: the decoder, its settings and its tokenizer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ortune.bundle.engine.manifest import HUB
from ortune.bundle.target import Replay, Source, Target
from ortune.core import hub
from ortune.core.errors import BadModel
from ortune.core.hub import HubFolder
from ortune.core.python_process import make_python_command
from ortune.core.session import Tensors
from ortune.data.checks import IDS
from ortune.data.sequences.generation import AnswerRules, CachedDecoder, generate_tokens
from ortune.graph.io import file
from ortune.targets.common import plain_session
from ortune.targets.common.replay import ANOTHER

_PROGRAM, _PACKAGE = "run.py", "onnxruntime-genai"
_PAST, _PRESENT = "past_key_values.%d.", "present.%d."
_PARTS = ("key", "value")
_TOKENS = 16
"""That are written after each golden sample."""


@dataclass(frozen=True)
class Genai(Target):
    """``model.onnx``, ``genai_config.json``, the tokenizer and ``run.py``, which writes text.

    Attributes:
        replayed: Let onnxruntime-genai write on from the golden samples, where it is installed:
            its tokens must be those of the bundle, one by one.
        limit: Not used: the same runtime runs the same file with the same settings.
    """

    def refuses(self, source: Source) -> str:
        """It opens decoders alone, on one stream of onnxruntime's own CPU kernels."""
        if why := plain_session.explain_cpu_refusal(source):
            return why
        settings = hub.find_folder(source.folder / HUB)
        if settings is None or settings.task != hub.GENERATION or settings.cache_sizes is None:
            return "it is no decoder that came from a folder with its settings"
        signature = source.manifest.signatures[next(iter(source.models))]
        names = {spec.name for spec in (*signature.inputs, *signature.outputs)}
        needed = {IDS, "logits", *(f"{p % 0}{part}" for p in (_PAST, _PRESENT) for part in _PARTS)}
        if missing := sorted(needed - names):
            return f"it has no {missing[0]}"
        return (
            "it runs nodes side by side"
            if plain_session.read_cpu_settings(source).parallel
            else ""
        )

    def write(self, source: Source, folder: Path) -> Sequence[str]:
        """Write the model and what says how it is opened."""
        settings = _read_settings(source)
        path = plain_session.copy_model(source, next(iter(source.models)), folder)
        hub.copy_side_files(settings, folder)
        text = json.dumps(build_config(source, settings, _shares_cache(path)), indent=1)
        (folder / hub.GENAI).write_text(f"{text}\n", encoding="utf-8")
        plain_session.write_text_file(folder / _PROGRAM, "programs/genai.py")
        return (f'python {_PROGRAM} "A text"',)

    def replay(self, source: Source, folder: Path) -> Replay | None:
        """Compare its tokens with those of the bundle's own session; BadModel if they differ."""
        try:
            by = f"{_PACKAGE} {version(_PACKAGE)}"
        except PackageNotFoundError:
            return None
        settings, name = _read_settings(source), next(iter(source.models))
        with source.backend.open(source.models[name]) as session:
            for inputs, _ in source.feeds(name):
                prompt = np.array(inputs[IDS][:1])
                count = min(_TOKENS, settings.longest - prompt.shape[1])
                if count <= 0:
                    continue
                decoder = CachedDecoder(session.run, _take_first_row(inputs))
                expected = list(
                    generate_tokens(decoder, prompt, count, AnswerRules(settings.ends))
                )
                numbers = ",".join(str(token) for token in prompt[0])
                words = make_python_command(folder / _PROGRAM, numbers, "--tokens", str(count))
                printed = plain_session.run_command(words, folder)
                written: list[int] = json.loads(printed)
                actual = [token for token in written if token not in settings.ends]
                if actual != expected:
                    raise BadModel(f"{by} writes {actual}, and the bundle {expected}", fix=ANOTHER)
        return Replay(by, float("inf"))

    def unrun(self, replay: Replay | None) -> str:
        """It is a package of its own."""
        return "" if replay else f"{_PACKAGE}, which is not installed"


def _read_settings(source: Source) -> HubFolder:
    settings = hub.find_folder(source.folder / HUB)
    assert settings is not None, "what has none is refused"
    return settings


def _take_first_row(inputs: Tensors) -> Tensors:
    return {name: np.array(array[:1] if array.ndim else array) for name, array in inputs.items()}


def _shares_cache(path: Path) -> bool:
    """Say whether a decoder writes new keys and values behind the old ones, in one buffer."""
    return any(node.op_type == "GroupQueryAttention" for node in file.load(path).graph)


def build_config(source: Source, settings: HubFolder, shared: bool) -> dict[str, Any]:
    """Return ``genai_config.json``; what the folder's own says of the model is kept.

    `shared`: past and present are one buffer.
    """
    config_path = settings.folder / hub.GENAI
    config = (
        hub.read_json(config_path)
        if config_path.is_file()
        else _describe_model(source, settings, shared)
    )
    decoder = config["model"]["decoder"]
    decoder["filename"] = plain_session.MODEL
    opened = plain_session.session_settings(plain_session.read_cpu_settings(source))
    levels = {"disabled": "ORT_DISABLE_ALL", "all": "ORT_ENABLE_ALL"}
    level = levels.get(opened["level"], f"ORT_ENABLE_{str(opened['level']).upper()}")
    decoder["session_options"] = {
        "log_id": _PACKAGE,
        "intra_op_num_threads": opened["threads"],
        "graph_optimization_level": level,
        "enable_cpu_mem_arena": opened["arena"],
        "enable_mem_pattern": opened["memory_pattern"],
        **opened["entries"],
        "provider_options": [],
    }
    return config


def _describe_model(source: Source, settings: HubFolder, shared: bool) -> dict[str, Any]:
    signature = source.manifest.signatures[next(iter(source.models))]
    inputs = [spec.name for spec in signature.inputs]
    config, ends = settings.config, sorted(settings.ends)
    heads, width = settings.cache_sizes or (0, 0)
    beside = {name: name for name in ("attention_mask", "position_ids") if name in inputs}
    all_heads = config.get("num_attention_heads", config.get("n_head", heads))
    last = ends[0] if ends else 0
    return {
        "model": {
            "type": "decoder",
            "bos_token_id": config.get("bos_token_id") or last,
            "eos_token_id": ends[0] if len(ends) == 1 else ends,
            "pad_token_id": config.get("pad_token_id") or last,
            "context_length": settings.longest,
            "vocab_size": config.get("vocab_size"),
            "decoder": {
                "head_size": width,
                "hidden_size": all_heads * width,
                "num_attention_heads": all_heads,
                "num_key_value_heads": heads,
                "num_hidden_layers": sum(name.endswith(".key") for name in inputs),
                "inputs": {
                    "input_ids": IDS,
                    **beside,
                    **{f"past_{part}_names": f"{_PAST}{part}" for part in _PARTS},
                },
                "outputs": {
                    "logits": "logits",
                    **{f"present_{part}_names": f"{_PRESENT}{part}" for part in _PARTS},
                },
            },
        },
        "search": {
            "do_sample": False,
            "max_length": settings.longest,
            "past_present_share_buffer": shared,
        },
    }
