"""What is asked of `optimize --buckets`."""

from dataclasses import KW_ONLY
from typing import Annotated

from ortune.core.custom_ops import BackendRequest
from ortune.core.fields import Model, Option, Source
from ortune.core.request import UnpackRequest, request


@request
class BucketsRequest(BackendRequest, UnpackRequest):
    """Find the padding in an encoder's data, prove that it can be cut, choose lengths.

    The answer is a backend to give to --on of any verb, and to ot.load: it cuts every call down
    to the shortest bucket that holds its real positions. A search tries the same by itself where
    the data are padded.

    Example:
        ortune optimize encoder.onnx --data padded/ --buckets --on "cpu(threads=1)"

    Attributes:
        model: An encoder with a dynamic length.
        data: Samples, padded as they are served: a folder of .npz, .npy per input or images, a
            .jsonl file, or FILE.py:NAME.
        count: Most buckets.
        multiple: Buckets are multiples of this.
        mask: The mask; found in the data by default.
        least_db: Signal to noise that every output keeps without padding; less for quantized
            models.
        seconds: Time for timing padded against cut calls; 0 leaves it out.

    Raises:
        BadData: There is no mask with padding at one end, or nothing is padded.
        Refused: An answer changes without the padding, or nothing is gained.
        OrtuneError: Model, data or backend cannot be used.
    """

    model: Model
    _: KW_ONLY
    data: Source = None
    count: Annotated[int, Option(low=1, hidden=True)] = 4
    multiple: Annotated[int, Option(low=1, hidden=True)] = 8
    mask: Annotated[str, Option("NAME", hidden=True)] = ""
    least_db: Annotated[float, Option(low=-1000, high=1000, hidden=True)] = 100.0
    seconds: Annotated[float, Option(low=0, hidden=True)] = 10.0
