"""A model's folder in the hub's layouts: its ONNX file, and what its settings say.

Settings are read as JSON and nothing else: no code of a folder is run, and nothing is downloaded.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

from ortune.core import regular_file
from ortune.core.errors import BadModel
from ortune.core.plugins import stored

ONNX_FILES = ("onnx/model.onnx", "model.onnx")
"""Where a folder has its ONNX file; the first that is there counts."""
CONFIG, GENAI, TOKENIZER = "config.json", "genai_config.json", "tokenizer.json"
MODULES, PICTURES = "modules.json", "preprocessor_config.json"
PROCESSOR, VOCABULARY = "processor_config.json", "vocab.json"
SIDE_FILES = (
    *(CONFIG, TOKENIZER, MODULES, PICTURES, "tokenizer_config.json", "special_tokens_map.json"),
    *(GENAI, PROCESSOR, "generation_config.json", "sentence_bert_config.json"),
    *("config_sentence_transformers.json", "vocab.txt", VOCABULARY),
    *("1_Pooling/config.json", "2_Normalize/config.json"),
)
"""What tells how texts and pictures become inputs; copied with a model."""
LARGEST = 1 << 26
"""Bytes of such a file: tokenizers of 250,000 words take 17 MB."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
SIMILARITY, FEATURES, GENERATION = "sentence-similarity", "feature-extraction", "text-generation"
TEXT_CLASSES, TOKEN_CLASSES = "text-classification", "token-classification"
QUESTIONS, MASKS = "question-answering", "fill-mask"
SPEECH, SOUND_CLASSES = "automatic-speech-recognition", "audio-classification"
_TASKS = {
    "ForSequenceClassification": TEXT_CLASSES,
    "ForTokenClassification": TOKEN_CLASSES,
    "ForMaskedLM": MASKS,
    "ForQuestionAnswering": QUESTIONS,
    "ForImageClassification": "image-classification",
    "ForCausalLM": GENERATION,
    "LMHeadModel": GENERATION,
    "ForAudioClassification": SOUND_CLASSES,
    "ForCTC": SPEECH,
    "WhisperForConditionalGeneration": SPEECH,
    "ForConditionalGeneration": "text2text-generation",
    "MTModel": "text2text-generation",
}
"""End of an architecture's name -> what the hub calls its task."""
Pooling: TypeAlias = Literal["mean", "cls", "max", "last"]
"""How vectors of tokens become that of a sentence."""
_POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_SHIFTED = re.compile(r"roberta|camembert|mpnet|xmod|esm")
"""Kinds of models whose positions begin behind that of the padding, at 2."""
_UNBOUNDED = 10**6
"""tokenizer_config.json has 10**30 where a tokenizer knows no longest text."""
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}
"""Pillow's numbers of its filters."""


@dataclass(frozen=True)
class HubFolder:
    """What the settings of a folder say."""

    root: Path  # where ``modules.json`` is, if it has one
    folder: Path  # where ``config.json`` and ``tokenizer.json`` are; mostly the same

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """``config.json``, or what ``genai_config.json`` says in its words.

        Raises:
            BadModel: It cannot be read, as any other file of the folder.
        """
        if (self.folder / CONFIG).is_file():
            return read_json(self.folder / CONFIG)
        model = _read_genai(self.folder)
        names = [f"{model.get('type')}ForCausalLM"]
        longest = model.get("context_length")
        return {**model, "architectures": names, "max_position_embeddings": longest}

    @cached_property
    def task(self) -> str:
        """What the model is for, in the hub's words; feature-extraction where nothing says so."""
        if (self.root / MODULES).is_file():
            return SIMILARITY
        ends = (task for end, task in _TASKS.items() if self._architecture.endswith(end))
        task = next(ends, FEATURES)
        hears = task == TEXT_CLASSES and "sampling_rate" in self.extractor
        return SOUND_CLASSES if hears else task

    @property
    def _architecture(self) -> str:
        return str((self.config.get("architectures") or [""])[0])

    @property
    def spells(self) -> bool:
        """Whether the model says a token of every frame of sound, as wav2vec2 does (CTC)."""
        return self.task == SPEECH and self._architecture.endswith("ForCTC")

    @property
    def blank(self) -> int:
        """Number of the token that stands for no letter, of a model that spells."""
        return next(iter(_read_numbers(self.config.get("pad_token_id"))), 0)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers; none where they have none."""
        names = self.config.get("id2label")
        if not isinstance(names, Mapping):
            return ()
        numbers = sorted(names, key=lambda number: int(number) if str(number).isdigit() else -1)
        return tuple(str(names[number]) for number in numbers)

    @cached_property
    def pooling(self) -> Pooling | None:
        """How vectors of tokens become that of a sentence; None where that is not known.

        A folder with further layers, such as Dense, has none.
        """
        modules = list_modules(self.root)
        kinds = {str(module["type"]).rpartition(".")[2]: module for module in modules}
        if not kinds.keys() <= {"Transformer", "Pooling", "Normalize"} or "Pooling" not in kinds:
            return None
        pooling = read_json(self.root / str(kinds["Pooling"].get("path", "")) / CONFIG)
        modes = [mode for key, mode in _POOLINGS.items() if pooling.get(key)]
        named = str(pooling.get("pooling_mode", "")).removesuffix("token")
        modes = modes or [mode for mode in _POOLINGS.values() if mode == named]
        return modes[0] if len(modes) == 1 else None

    @cached_property
    def normalizes(self) -> bool:
        """Whether vectors of sentences are brought to length 1."""
        return any(str(module["type"]).endswith("Normalize") for module in list_modules(self.root))

    @property
    def mask(self) -> str:
        """The token that stands for a missing word; empty where there is none."""
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            token = _read_optional(self.folder / name).get("mask_token")
            token = token.get("content") if isinstance(token, Mapping) else token
            if isinstance(token, str):
                return token
        return ""

    @property
    def keeps_logits(self) -> bool:
        """Whether sentence-transformers takes the logits of a cross-encoder as its scores."""
        section = self.config.get("sentence_transformers")
        named = section.get("activation_fn") if isinstance(section, Mapping) else None
        named = named or self.config.get("sbert_ce_default_activation_function")
        return str(named).endswith(".Identity")

    @property
    def generation(self) -> Mapping[str, Any]:
        """How texts are written: ``generation_config.json``, or else ``config.json``."""
        return {**self.config, **_read_optional(self.folder / "generation_config.json")}

    @property
    def ends(self) -> frozenset[int]:
        """Numbers of the tokens that end a text."""
        return _read_numbers(self.generation.get("eos_token_id"))

    @property
    def start(self) -> int:
        """Number of the token that the answers of an encoder-decoder begin behind."""
        keys = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
        numbers = (self.generation.get(key) for key in keys)
        return next((number for number in numbers if isinstance(number, int)), 0)

    @property
    def forced(self) -> tuple[frozenset[int], ...]:
        """For each first token of an encoder-decoder's answer the numbers that it is one of.

        Of speech models a language, that it is written down, and that it is without times.
        """
        settings = self.generation
        languages, tasks = (settings.get(f"{kind}_to_id") for kind in ("lang", "task"))
        choices = (
            list(languages.values()) if isinstance(languages, Mapping) else None,
            tasks.get("transcribe") if isinstance(tasks, Mapping) else None,
            settings.get("no_timestamps_token_id"),
            settings.get("forced_bos_token_id"),
        )
        return tuple(filter(None, map(_read_numbers, choices)))

    @property
    def banned(self) -> frozenset[int]:
        """Numbers of the tokens that an encoder-decoder never writes."""
        words = self.generation.get("bad_words_ids")
        single = [word[0] for word in words or () if isinstance(word, list) and len(word) == 1]
        return _read_numbers(self.generation.get("suppress_tokens")) | _read_numbers(single)

    @property
    def banned_first(self) -> frozenset[int]:
        """Numbers of the tokens that no answer of an encoder-decoder begins with."""
        return _read_numbers(self.generation.get("begin_suppress_tokens"))

    @property
    def cache_sizes(self) -> tuple[int, int] | None:
        """Heads of keys and values, and the width of one; None where settings do not say."""
        config = self.config.get("decoder")
        config = config if isinstance(config, Mapping) else self.config
        all_heads = config.get("num_attention_heads", config.get("n_head"))
        hidden = config.get("hidden_size", config.get("n_embd"))
        heads = config.get("num_key_value_heads") or all_heads
        width = config.get("head_size") or config.get("head_dim")
        if not width and isinstance(hidden, int) and isinstance(all_heads, int) and all_heads:
            width = hidden // all_heads
        return (heads, width) if isinstance(heads, int) and isinstance(width, int) else None

    @property
    def longest(self) -> int:
        """Tokens that a text may have, its special ones among them."""
        tokens = _read_optional(self.folder / "tokenizer_config.json").get("model_max_length")
        sentence = _read_optional(self.root / "sentence_bert_config.json").get("max_seq_length")
        places = self.config.get("max_position_embeddings")
        if isinstance(places, int) and _SHIFTED.search(str(self.config.get("model_type"))):
            places -= 2
        bounds = [int(n) for n in (tokens, sentence, places) if isinstance(n, (int, float)) and n]
        return min([n for n in bounds if 0 < n < _UNBOUNDED], default=512)

    @property
    def extractor(self) -> Mapping[str, Any]:
        """How sound becomes features, as transformers 4 or 5 writes it; perhaps nothing."""
        nested = _read_optional(self.folder / PROCESSOR).get("feature_extractor")
        return nested if isinstance(nested, dict) else _read_optional(self.folder / PICTURES)

    @cached_property
    def picture_keys(self) -> dict[str, Any] | None:
        """Keys of ``preprocess.toml`` as preprocessor_config.json has them; None without one."""
        path = self.folder / PICTURES
        if not path.is_file():
            return None
        settings = read_json(path)
        keys: dict[str, Any] = {}
        if settings.get("do_resize", True) and settings.get("size") is not None:
            keys["resize"] = _read_size(settings["size"])
            keys["interpolation"] = _FILTERS.get(settings.get("resample", 2), "bilinear")
        if settings.get("do_center_crop") and settings.get("crop_size") is not None:
            keys["crop"] = _read_size(settings["crop_size"])
        rescales = settings.get("do_rescale", True)
        keys["scale"] = float(settings.get("rescale_factor", 1 / 255)) if rescales else 1.0
        if settings.get("do_normalize", True) and settings.get("image_mean") is not None:
            keys["mean"], keys["std"] = settings["image_mean"], settings["image_std"]
        return keys


def _read_numbers(value: Any) -> frozenset[int]:
    """Return the numbers of tokens that a setting names: one, a list of them, or none."""
    numbers = value if isinstance(value, list) else [value]
    return frozenset(number for number in numbers if type(number) is int and number >= 0)


def _read_size(size: Any) -> Any:
    """Return a size as `preprocess.toml` has it: [height, width], or a number for the shorter."""
    if not isinstance(size, Mapping):
        return size
    edge = size.get("shortest_edge")
    return edge if edge is not None else [size["height"], size["width"]]


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        BadModel: It cannot be read, or holds something else.
    """
    content = _parse_json(path)
    if not isinstance(content, dict):
        raise BadModel(f"{path} holds no JSON object", fix="download the folder again")
    return content


def list_modules(root: Path) -> list[Mapping[str, Any]]:
    """Return the modules that a folder's ``modules.json`` lists, each with its ``type``.

    Raises:
        BadModel: It cannot be read, or holds something else.
    """
    path = root / MODULES
    content = _parse_json(path) if path.is_file() else []
    if not isinstance(content, list) or not all(map(_is_module, content)):
        raise BadModel(f"{path} lists no modules", fix="download the folder again")
    return content


def _is_module(value: object) -> bool:
    """Say whether a value has a type, and its place, if any, is below the folder."""
    if not isinstance(value, dict) or "type" not in value:
        return False
    place = PurePosixPath(str(value.get("path", "")))
    return not place.is_absolute() and ".." not in place.parts and "\\" not in str(place)


def _parse_json(path: Path) -> Any:
    try:
        return stored.parse_json(regular_file.read_bytes(path, LARGEST, BadModel))
    except (OSError, ValueError, RecursionError) as error:
        raise BadModel(f"cannot read {path}: {error}", fix="download the folder again") from error


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def find_folder(model: str | Path) -> HubFolder | None:
    """Return the settings that belong to a model: in its folder, or in the one above an ``onnx/``.

    Args:
        model: A folder, or an ONNX file in it or in its ``onnx/``.

    Raises:
        BadModel: It is a folder whose settings cannot be read.
    """
    path = Path(model)
    if path.is_dir():
        return _read_folder(path)
    home = path.absolute().parent
    for root in (home, home.parent) if home.name == "onnx" else (home,):
        with suppress(BadModel):  # a file of that name that is of something else
            if (folder := _read_folder(root)) is not None:
                return folder
    return None


def _read_folder(root: Path) -> HubFolder | None:
    folder = root / str(next(iter(list_modules(root)), {}).get("path", ""))
    if (folder / CONFIG).is_file():
        return HubFolder(root, folder) if "model_type" in read_json(folder / CONFIG) else None
    return HubFolder(root, folder) if _read_genai(folder) else None


def _read_genai(folder: Path) -> Mapping[str, Any]:
    """Return what onnxruntime-genai's settings say of the model; perhaps nothing."""
    model = _read_optional(folder / GENAI).get("model")
    return model if isinstance(model, dict) else {}


def locate_model(value: str | Path) -> str | Path:
    """Return the ONNX file of a hub's folder; what is no such folder, or has none, as it is.

    Raises:
        BadModel: As `resolve_folder`.
    """
    folder = Path(resolve_folder(value))
    decoder = _read_genai(folder).get("decoder") if folder.is_dir() else None
    named = decoder.get("filename") if isinstance(decoder, dict) else None
    names = (*ONNX_FILES, Path(str(named)).name) if named else ONNX_FILES
    files = (folder / name for name in names) if folder.is_dir() else ()
    return next((file for file in files if file.is_file()), resolve_folder(value))


def resolve_folder(value: str | Path) -> str | Path:
    """Return what names a model; of the folder that the hub's cache has of one, its snapshot.

    Raises:
        BadModel: There is no such folder, and the text is a name on the hub.
    """
    path = Path(value)
    if not path.exists() and _NAME.fullmatch(str(value)) and not path.suffix:
        raise BadModel(
            f"no file or folder {value}, and nothing is downloaded",
            fix=f"hf download {value} --local-dir {path.name}, and give that folder",
        )
    if not path.is_dir():
        return value
    if (path / "snapshots").is_dir() and (path / "refs" / "main").is_file():
        commit = regular_file.read_text(path / "refs" / "main", 1 << 10).strip()
        return path / "snapshots" / Path(commit).name
    return value


def list_side_files(folder: HubFolder) -> Iterator[tuple[str, Path]]:
    """Yield place and file of all settings that are copied with a model."""
    for name in SIDE_FILES:
        for home in dict.fromkeys((folder.root, folder.folder)):
            if (home / name).is_file():
                yield (home / name).relative_to(folder.root).as_posix(), home / name


def copy_side_files(folder: HubFolder, out: Path) -> None:
    """Copy the settings of a folder into another, which is made."""
    for place, file in list_side_files(folder):
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, out / place)
