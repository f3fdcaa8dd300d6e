"""What a model says in the words of its task: a class, classes of tokens, a vector, a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortune.core import hub
from ortune.core.hub import HubFolder
from ortune.core.session import Tensors
from ortune.data.checks import IDS
from ortune.data.sentences import load_tokenizer
from ortune.data.sequences.generation import CachedDecoder, generate_tokens
from ortune.data.sequences.pairs import StatePair
from ortune.data.sequences.rolling import Run
from ortune.metrics.common.outputs import compute_softmax
from ortune.metrics.common.pooling import find_vectors, pool_sentences

_TOKENS = 3


def state_answer(
    settings: HubFolder, inputs: Tensors, outputs: Tensors
) -> Mapping[str, Any] | None:
    """Return what one sample is answered, as plain data; None where outputs say it themselves.

    Args:
        settings: The model's folder.
        inputs: Of the sample: the mask says which tokens count.
        outputs: The answer.
    """
    classes = settings.classes
    if settings.pooling and all(array.dtype.kind == "f" for array in outputs.values()):
        name = find_vectors(outputs, "")
        vectors = pool_sentences(outputs, name, settings.pooling, inputs)
        if settings.normalizes:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return {"vector": [round(float(x), 6) for x in vectors[0]]}
    logits = outputs.get("logits")
    if logits is None or logits.shape[-1] != len(classes) or len(classes) < 2:
        return None
    shares = compute_softmax(logits)
    best = shares[0].argmax(-1)
    if logits.ndim == _TOKENS:
        return {"labels": [classes[number] for number in best]}
    return {"label": classes[best], "score": round(float(shares[0, best]), 6)}


def continue_text(
    settings: HubFolder, run: Run, inputs: Tensors, count: int
) -> Mapping[str, Any] | None:
    """Return what follows a text; None of a model that does not generate with a cache.

    Args:
        settings: The model's folder.
        run: Runs the model once.
        inputs: Of the text.
        count: Tokens at most; fewer where one ends the text.
    """
    if settings.task != hub.GENERATION or not any(StatePair("", name).grows for name in inputs):
        return None
    tokens = list(generate_tokens(CachedDecoder(run, inputs), inputs[IDS], count, settings.ends))
    return {"text": load_tokenizer(settings).decode(tokens), "tokens": tokens}
