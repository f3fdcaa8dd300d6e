"""A module as a person names it: a factory, a saved program or a folder, with its weights."""

import inspect
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortune.core import hub
from ortune.core.errors import BackendMissing, BadModel, BadSettings, summarize_error, with_article
from ortune.core.facts import TensorSpec
from ortune.core.plugins import user_function
from ortune.core.wording import format_count

_SHOWN = 4
"""Keys that an error names."""


_LENGTH, _PAST, _TARGET, _SECOND = 16, 5, 8, 16000
"""Made-up tokens, those in a cache, tokens of a decoder, and samples of sound."""


def is_folder(source: str) -> bool:
    """Say whether a text names the folder of a transformers model."""
    return (_find_home(source) / hub.CONFIG).is_file()


def _find_home(source: str) -> Path:
    """Return where a folder has ``config.json``: one of sentence-transformers may be nested."""
    settings = hub.find_folder(source) if Path(source).is_dir() else None
    return Path(source) if settings is None else settings.folder


def load_folder(source: str, part: str = "all") -> Any:
    """Return the model in float32, its weights from the folder alone.

    Args:
        source: The folder.
        part: ``encoder``, ``decoder`` or ``all``.

    Raises:
        BackendMissing: transformers is not installed.
        BadModel: The folder holds no model that this release of it knows, or its
            weights pickled.
    """
    home = _find_home(source)
    _refuse_pickled_weights(home)
    try:
        import transformers
    except ImportError:
        raise BackendMissing(
            f"{source} is a folder of transformers, which is not installed",
            fix="pip install torch==2.13.0 transformers",
        ) from None
    import torch

    try:
        config = transformers.AutoConfig.from_pretrained(
            home, local_files_only=True, trust_remote_code=False
        )
        names = getattr(config, "architectures", None) or ["AutoModel"]
        kind = getattr(transformers, names[0], transformers.AutoModel)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        # Layers behind it take the vectors of tokens; nothing would read the pooler's.
        pooler = "add_pooling_layer" in inspect.signature(kind).parameters
        hub_folder = hub.find_folder(Path(source)) if pooler else None
        pools = hub_folder is not None and hub_folder.task == hub.SIMILARITY
        options = {"add_pooling_layer": False} if pools else {}
        # Attention as plain operators: what fuses them afterwards knows these.
        model = kind.from_pretrained(
            home,
            config=config,
            local_files_only=True,
            dtype=torch.float32,
            attn_implementation="eager",
            trust_remote_code=False,
            **options,
        )
    except Exception as error:
        raise BadModel(
            f"transformers does not load {source}: "
            f"{summarize_error(user_function.describe_error(error))}",
            fix="give a folder that save_pretrained wrote; code of its own is never run",
        ) from error
    model = model.eval()
    if part != "all" and not getattr(config, "is_encoder_decoder", False):
        raise BadSettings(f"{source} has no {part} of its own", fix="leave it out")
    if part != "all":
        return _take_part(model, part, transformers)
    return _give_cache(model, transformers) if has_cache(model) else model


def has_cache(model: Any) -> bool:
    """Say whether a model of transformers generates from keys and values of earlier tokens."""
    name = type(model).__name__
    layered = all(hasattr(model.config, key) for key in ("num_hidden_layers", "hidden_size"))
    return layered and name.endswith(("ForCausalLM", "LMHeadModel"))


def _give_cache(model: Any, transformers: Any) -> Any:
    """Return a decoder whose inputs and outputs are tensors: the cache is a pair of them a layer.

    It takes ids, the mask of past and new positions and the pairs in the order of their layers,
    and answers with ``logits``, ``present.LAYER.key`` and ``.value``, as optimum's files do.
    """

    class Cached(type(model)):  # type: ignore[misc]
        def forward(self, input_ids: Any, attention_mask: Any, *past: Any) -> dict[str, Any]:
            pairs = list(zip(past[::2], past[1::2], strict=True))
            answer = super().forward(
                input_ids=input_ids,
                attention_mask=attention_mask,
                past_key_values=transformers.DynamicCache(pairs),
                use_cache=True,
            )
            return {"logits": answer.logits, **_name_cache(answer.past_key_values)}

    Cached.__name__ = type(model).__name__
    model.__class__ = Cached
    return model


def _take_part(model: Any, part: str, transformers: Any) -> Any:
    """Return one part of an encoder-decoder; its inputs and outputs are tensors.

    The encoder takes what the model takes, and answers with the keys and values that layers of the
    decoder look up: ``present.LAYER.encoder.key`` and ``.value``. The decoder takes ids, of texts
    the mask of the encoder, and of each layer keys and values of earlier ids and the encoder's. It
    answers with ``logits``, ``present.LAYER.decoder.key`` and ``.value``.
    """
    import torch

    whole, empty = type(model), transformers.DynamicCache
    has_mask = model.main_input_name == "input_ids"

    class Encoder(whole):  # type: ignore[misc, valid-type]
        def forward(self, *fed: Any) -> dict[str, Any]:
            hidden = self.get_encoder()(fed[0], attention_mask=fed[1] if has_mask else None)[0]
            cache = transformers.EncoderDecoderCache(empty(), empty())
            ids = torch.zeros((hidden.shape[0], 1), dtype=torch.long)
            self.get_decoder()(
                input_ids=ids, encoder_hidden_states=hidden, past_key_values=cache, use_cache=True
            )
            return _name_cache(cache.cross_attention_cache, "encoder.")

    class Decoder(whole):  # type: ignore[misc, valid-type]
        def forward(self, ids: Any, *fed: Any) -> dict[str, Any]:
            mask, past = (fed[0], fed[1:]) if has_mask else (None, fed)
            pairs = list(zip(past[::2], past[1::2], strict=True))
            cache = transformers.EncoderDecoderCache(empty(pairs[::2]), empty(pairs[1::2]))
            size = (*ids.shape[:1], past[2].shape[2], self.config.hidden_size)
            answer = super().forward(
                attention_mask=mask,
                decoder_input_ids=ids,
                encoder_outputs=(past[2].new_zeros(size),),  # read for its size alone
                past_key_values=cache,
                use_cache=True,
            )
            present = _name_cache(answer.past_key_values.self_attention_cache, "decoder.")
            return {"logits": answer.logits, **present}

    kind = Encoder if part == "encoder" else Decoder
    kind.__name__, kind.part, kind.whole = whole.__name__, part, whole
    model.__class__ = kind
    return model


def _name_cache(cache: Any, half: str = "") -> dict[str, Any]:
    """Return the keys and values of every layer by the names that optimum's files have."""
    return {
        f"present.{layer}.{half}{name}": tensor
        for layer, cached in enumerate(cache.layers)
        for name, tensor in (("key", cached.keys), ("value", cached.values))
    }


def _refuse_pickled_weights(folder: Path) -> None:
    pickled = next(folder.glob("pytorch_model*.bin"), None)
    if pickled is None or any(folder.glob("*.safetensors")):
        return
    code = (
        "import torch; from safetensors.torch import save_file; "
        f"w = torch.load('{pickled}', weights_only=True); "
        "save_file({k: v.clone() for k, v in w.items()}, "
        f"'{folder / 'model.safetensors'}', {{'format': 'pt'}})"
    )
    raise BadModel(
        f"{folder} has its weights as {pickled.name} alone, which is pickled and may run code",
        fix=f'python -c "{code}"',
    )


def folder_inputs(model: Any) -> list[TensorSpec]:
    """Return what a model of transformers takes, dynamic dimensions by name; empty if unknown."""
    parameters = inspect.signature(getattr(model, "whole", type(model)).forward).parameters
    part = getattr(model, "part", "")
    specs = {spec.name: spec for spec in _list_input_specs(model.config)}
    if has_cache(model):
        return [specs["input_ids"], *_list_cache_specs(model.config)]
    if part == "decoder":
        return [specs["input_ids"], *_list_decoder_specs(model)]
    first = getattr(model, "main_input_name", "")
    beside = {"input_ids": ("attention_mask", "token_type_ids"), "decoder_input_ids": ()}
    names = [first, *beside.get(first, ())]
    if getattr(model.config, "is_encoder_decoder", False) and not part:
        names.append("decoder_input_ids")
    return [specs[name] for name in names if name in parameters and name in specs]


def folder_sizes(model: Any) -> dict[str, int]:
    """Return dynamic dimension -> the size that an example has."""
    most = getattr(model.config, "max_position_embeddings", None) or _LENGTH
    sizes = {"batch": 2, "sequence": min(_LENGTH, most), "past": _PAST}
    return {**sizes, "source": _LENGTH, "target": _TARGET, "samples": _SECOND}


def _list_cache_specs(config: Any) -> Iterator[TensorSpec]:
    """Yield the mask of a decoder and the pairs of its cache, by the names of optimum."""
    yield TensorSpec("attention_mask", "int64", ("batch", "past + sequence"))
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    heads = getattr(config, "num_key_value_heads", None) or heads
    for layer in range(config.num_hidden_layers):
        for part in ("key", "value"):
            name = f"past_key_values.{layer}.{part}"
            yield TensorSpec(name, "float32", ("batch", heads, "past", width))


def _list_decoder_specs(model: Any) -> Iterator[TensorSpec]:
    """Yield what the decoder of an encoder-decoder takes beside ids."""
    config = model.config
    length: int | str = getattr(config, "max_source_positions", "source")
    if model.main_input_name == "input_ids":
        length = "source"
        yield TensorSpec("encoder_attention_mask", "int64", ("batch", length))
    heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    width = getattr(config, "d_kv", None) or config.hidden_size // heads
    layers = getattr(config, "decoder_layers", None) or config.num_decoder_layers
    for layer in range(layers):
        for half, size in (("decoder", "past"), ("encoder", length)):
            for part in ("key", "value"):
                name = f"past_key_values.{layer}.{half}.{part}"
                yield TensorSpec(name, "float32", ("batch", heads, size, width))


def _list_input_specs(config: Any) -> Iterator[TensorSpec]:
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
    if bands := getattr(config, "num_mel_bins", 0):
        frames = 2 * config.max_source_positions
        yield TensorSpec("input_features", "float32", ("batch", bands, frames))


SCRIPTS = (".pt", ".pth", ".ts", ".jit")
"""Endings of TorchScript."""
SEED = 0
"""Before a factory is called: weights that nobody gives are the same in every process."""


@dataclass(frozen=True)
class ModuleSource:
    """Where a module and its weights are."""

    # ``FILE.py:NAME``, a program of torch.export (.pt2), TorchScript (.pt) or a folder of
    # transformers.
    source: str
    weights: str = ""  # checkpoint for a factory's module; empty where it brings its own
    key: str = ""  # where the state dict is in the checkpoint; see `read`
    prefix: str = ""  # taken from the front of every name in it
    unsafe: bool = False  # the checkpoint may run code
    part: str = "all"  # of a folder's encoder-decoder: ``encoder`` or ``decoder``


def is_source(text: str) -> bool:
    """Say whether a text names a module of PyTorch rather than a model file."""
    program = text.endswith((".pt2", *SCRIPTS))
    return program or user_function.is_function(text) or is_folder(text)


def load_module(module_source: ModuleSource) -> tuple[Any, set[str]]:
    """Return the module in evaluation mode, and the names that it takes as keywords.

    Raises:
        BadSettings: `source` is none of the four kinds.
        BadModel: It does not load.
    """
    import torch

    source = module_source.source
    if not source:
        raise BadSettings("torch is given no module", fix="write torch(source=FILE.py:NAME)")
    if user_function.is_function(source):
        torch.manual_seed(SEED)
        module = user_function.import_function(source, "a function that makes a module")()
        if not isinstance(module, torch.nn.Module):
            raise BadModel(
                f"{source} returns {with_article(type(module).__name__)}, not a torch.nn.Module",
                fix="return the module itself",
            )
    elif is_folder(source):
        module = load_folder(source, module_source.part)
    else:
        if module_source.weights:
            raise BadSettings(
                f"{source} holds its own weights", fix="leave weights= out, or give a factory"
            )
        return _load_file(Path(source))
    if module_source.weights:
        path, key, prefix = Path(module_source.weights), module_source.key, module_source.prefix
        fill_module(module, path, read_checkpoint(path, key, prefix, unsafe=module_source.unsafe))
    return module.eval(), set(inspect.signature(module.forward).parameters)


def _load_file(path: Path) -> tuple[Any, set[str]]:
    import torch

    if path.suffix != ".pt2" and path.suffix not in SCRIPTS:
        raise BadSettings(
            f"cannot read '{path}' as a module",
            fix="give FILE.py:NAME, a torch.export program (.pt2) or TorchScript (.pt)",
        )
    if not path.is_file():
        raise BadModel(f"no file {path}", fix="check the path in torch(source=...)")
    try:
        if path.suffix == ".pt2":
            program = torch.export.load(path)
            # An exported program takes as keywords exactly what it was exported with as such.
            return program.module(), set(program.call_spec.in_spec.child(1).context)
        script = torch.jit.load(path, map_location="cpu").eval()
        return script, {argument.name for argument in script.forward.schema.arguments}
    except Exception as error:
        raise BadModel(
            f"torch does not load {path.name}: "
            f"{summarize_error(user_function.describe_error(error))}",
            fix="a state dict is given as torch(source=FILE.py:NAME, weights=...)",
        ) from error


def walk_answer(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors in a module's answer in order, each with the keys on the way to it."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_answer(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from walk_answer(item, f"{name}.{index}" if name else "")


def read_checkpoint(
    path: Path, key: str = "", prefix: str = "", *, unsafe: bool = False
) -> dict[str, Any]:
    """Return the tensors of a checkpoint by name.

    Args:
        path: A .safetensors file, or what torch.save wrote.
        key: Where the state dict is inside, such as ``ema.model``; without it, the checkpoint
            itself, or the only mapping of tensors in it.
        prefix: Taken from the front of every name.
        unsafe: Unpickle whatever the file asks for: it runs code.

    Raises:
        BadModel: It cannot be read_checkpoint, or holds more than tensors and `unsafe` is off.
        BadSettings: There is no such key or prefix, or there are several state dicts.
    """
    state_dict = _find_state_dict(path, _load_content(path, unsafe), key)
    state = {str(name): value for name, value in state_dict.items() if _is_tensor(value)}
    if not prefix:
        return state
    stripped = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    if not stripped:
        raise BadSettings(
            f"no name in {path} begins with '{prefix}'",
            fix=f"its names are: {_join_first_names(state)}",
        )
    return stripped


def fill_module(module: Any, path: Path, state: Mapping[str, Any]) -> None:
    """Put a state dict into a module. Raises BadModel: names or shapes are not the module's."""
    expected = set(module.state_dict())
    # What stands before all names, such as ``module.``, where they fit without it.
    first = min(expected, default="")
    ends = (name.removesuffix(first) for name in state if first and name.endswith(first))
    if prefix := next((p for p in ends if {f"{p}{n}" for n in expected} == set(state)), ""):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    missing, more = sorted(expected - set(state)), sorted(set(state) - expected)
    if missing or more:
        parts = [
            f"{format_count(len(names), 'name')} {fault} ({_join_first_names(names)})"
            for names, fault in ((missing, "missing"), (more, "too many"))
            if names
        ]
        raise BadModel(
            f"{path} does not fill the module: {', '.join(parts)}",
            fix="give the state dict of this very module, with --state-dict-key where the file "
            "holds several",
        )
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        reason = summarize_error(user_function.describe_error(error))
        raise BadModel(
            f"{path} does not fill the module: {reason}",
            fix="give the state dict of this very module",
        ) from error


def _load_content(path: Path, unsafe: bool) -> Any:
    import torch

    if not path.is_file():
        raise BadModel(f"no file {path}", fix="check the path of the weights")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(os.fspath(path))
        return torch.load(path, map_location="cpu", weights_only=not unsafe)
    except pickle.UnpicklingError as error:
        if unsafe or "weights_only" not in str(error).lower():
            raise _make_read_error(path, error) from error
        raise BadModel(
            f"{path} holds more than tensors, and reading it would run code from the file",
            fix="save the module's state_dict() alone, or give --unsafe-pickle if you trust it",
        ) from error
    except Exception as error:
        raise _make_read_error(path, error) from error


def _make_read_error(path: Path, error: Exception) -> BadModel:
    reason = summarize_error(user_function.describe_error(error))
    return BadModel(f"{path} is no checkpoint: {reason}", fix="give what torch.save wrote")


def _find_state_dict(path: Path, content: Any, key: str) -> Mapping[str, Any]:
    """Return the state dict that a checkpoint holds."""
    for part in filter(None, key.split(".")):
        inner = content.get(part) if isinstance(content, Mapping) else getattr(content, part, None)
        if inner is None:
            raise BadSettings(
                f"{path} has no '{key}'", fix=f"use one of {_describe_keys(content)}"
            )
        content = inner
    if hasattr(content, "state_dict"):  # a whole module, which only an unsafe pickle brings
        content = content.state_dict()
    if _is_state(content) or content == {}:  # of a module without weights
        return dict(content)
    inside = {name: value for name, value in _list_items(content) if _is_state(value)}
    if len(inside) == 1:
        return dict(next(iter(inside.values())))
    if inside:
        raise BadSettings(
            f"{path} holds several state dicts",
            fix=f"give --state-dict-key, one of {', '.join(inside)}",
        )
    raise BadModel(
        f"{path} holds no state dict",
        fix=f"give --state-dict-key; it has {_describe_keys(content)}",
    )


def _is_state(value: Any) -> bool:
    """Whether a mapping has tensors and no mapping of them: counts may lie between."""
    items = [item for _, item in _list_items(value)]
    return any(map(_is_tensor, items)) and not any(isinstance(item, Mapping) for item in items)


def _list_items(value: Any) -> list[tuple[str, Any]]:
    return [(str(k), v) for k, v in value.items()] if isinstance(value, Mapping) else []


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _describe_keys(content: Any) -> str:
    return _join_first_names([name for name, _ in _list_items(content)]) or type(content).__name__


def _join_first_names(names: Any) -> str:
    all_names = list(names)
    more = ["..."] * (len(all_names) > _SHOWN)
    return ", ".join([*all_names[:_SHOWN], *more])
