"""What `verify` and `extract` are asked."""

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Literal

from ortune.core.capabilities import HERE
from ortune.core.custom_ops import BackendRequest, BudgetRequest, CustomOpsRequest
from ortune.core.fields import File, Model, Option, Out, Source
from ortune.core.request import DataRequest, UnpackRequest, request
from ortune.data.sequences.request import SequenceRequest


@request
class Verify(SequenceRequest, BackendRequest, DataRequest, BudgetRequest):
    """Judge whether OTHER answers like REFERENCE, within the budget.

    Exit code 0 for proved, likely and undecided, 1 when it fails. Without --data the inputs are
    made up.

    Example:
        ortune verify model.onnx small.onnx --data samples/ --budget "top1>=base-0.01"
        ortune verify model.onnx small.onnx --shape x:1x3x320x320
        ortune verify model.onnx int8.onnx --data samples/ --simulate avx2
        ortune verify model.onnx int8.onnx --data samples/ --bisect -o why/

    Attributes:
        reference: The model that answers right, on the CPU provider.
        other: The model that is judged, on the backend.
        labels: Labels in the samples' order (.npy, .csv) or by file name (.csv, COCO .json).
        ignore_output: Output whose values may change: the budget does not read it. Repeat it for
            several.
        evaluate: Your own scoring function: NAME(run) calls run(**inputs) and returns one record
            per sample.
        simulate: Run OTHER as a CPU without VNNI would, where sums of 8-bit products saturate.
        bisect: Where OTHER fails, find the first step and node that cause it, and write a small
            model that shows it.
        out: Folder of the small model that --bisect writes; ortune-bisect by default.
        force: Overwrite an existing output.
        strict: Exit code 1 unless the accuracy is proved.
        environment: Run OTHER in one of `ortune doctor env list`; REFERENCE runs here.

    Raises:
        OrtuneError: A model, the data or the budget cannot be used, or OTHER does not run.
    """

    reference: Model
    other: Model
    _: KW_ONLY
    labels: File | None = None
    ignore_output: Annotated[tuple[str, ...], Option("NAME", "--ignore-output")] = ()
    evaluate: Annotated[str | None, Option("FILE.py:NAME")] = None
    simulate: Literal["avx2"] | None = None
    bisect: bool = False
    out: Out = None
    force: bool = False
    strict: bool = False
    environment: Annotated[str, Option("NAME")] = HERE

    @property
    def makes(self) -> tuple[Path, ...]:
        return (self.folder,) if self.bisect else ()

    @property
    def folder(self) -> Path:
        """Where the small model goes."""
        return Path(self.out or "ortune-bisect")


@request
class Extract(CustomOpsRequest, UnpackRequest):
    """Cut the part of MODEL between named tensors out into a model of its own.

    The piece includes all that it needs: weights, functions, captured values, and paths that
    bypass --from, up to the model's own inputs. A node stands for what it reads (--from) or makes
    (--to); where a tensor has the same name, write node:NAME. With --data the whole model runs on
    the CPU provider without fusions, the piece's inputs are recorded into the folder OUT-inputs,
    and the piece must give the same outputs.

    Example:
        ortune extract model.onnx --from /encoder/Add_output_0 --to logits -o piece.onnx
        ortune extract model.onnx --from node:Conv_3 --to node:Conv_3 --data D -o conv.onnx

    Attributes:
        model: The model file.
        out: The piece.
        inputs: Tensor, or node, that the piece begins with; repeat it. Default: the model's
            inputs.
        outputs: Tensor, or node, that the piece ends with; repeat it. Default: the model's
            outputs.
        data: Samples of the model's inputs: a folder of .npz, .npy per input or images, a .jsonl
            file, or FILE.py:NAME.
        limit: Record the first N samples of --data; 0 takes all.
        force: Overwrite an existing output.

    Raises:
        BadModel: The cut cannot be made, or the piece answers otherwise than the whole.
        BadData: The samples do not fit the model, or an input of the piece cannot be recorded.
    """

    model: Model
    out: Annotated[str | Path, Option("PATH", "-o --out")]
    inputs: Annotated[Sequence[str], Option("NAME", "--from")] = ()
    outputs: Annotated[Sequence[str], Option("NAME", "--to")] = ()
    _: KW_ONLY
    data: Source = None
    limit: Annotated[int, Option("N", "--samples", low=0)] = 0
    force: bool = False

    @property
    def makes(self) -> tuple[Path, ...]:
        return (*super().makes, self.samples_folder)

    @property
    def samples_folder(self) -> Path:
        """Where the recorded inputs of the piece lie."""
        out = Path(self.out)
        return out.with_name(f"{out.stem}-inputs")
