"""Write the descriptors of the serving protocol from the protos that tritonclient carries.

    python -m tools.open_inference

The protos are NVIDIA's, under the BSD 3-Clause licence, whose text lies beside the result.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tritonclient.grpc import model_config_pb2, service_pb2

PLACE = Path(__file__).parents[1] / "src" / "ortune" / "serving" / "protocol" / "open_inference.pb"


def descriptors() -> bytes:
    """Return both files, each behind those that it needs."""
    found = FileDescriptorSet()
    for module in (model_config_pb2, service_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    return bytes(found.SerializeToString(deterministic=True))


if __name__ == "__main__":
    PLACE.write_bytes(descriptors())
    print(f"{PLACE}: {PLACE.stat().st_size} bytes")
