"""Ray Serve: a deployment a file, over HTTP the tensor's bytes, over gRPC the v2 messages.

Arguments: folder, HTTP port, gRPC port. With RAY_SERVE_ENABLE_HA_PROXY=1 its HAProxy is in front
of the replicas; its gRPC is its own proxy.
"""

import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = str(Path(__file__).parent)

import numpy as np
import ray
from opened import session
from ray import serve
from ray.serve.config import gRPCOptions
from starlette.requests import Request
from starlette.responses import Response
from tritonclient.grpc import service_pb2

FOLDER, HTTP, GRPC = sys.argv[1:4]
SHAPES = {"small": (-1, 256), "big": (-1, 3, 224, 224)}
SERVICER = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"
HAPROXY = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"


@serve.deployment(max_ongoing_requests=64, ray_actor_options={"num_cpus": 0.5})
class Served:
    def __init__(self, path):
        self.name = Path(path).stem
        self.session = session(path)

    async def __call__(self, request: Request):
        x = np.frombuffer(await request.body(), np.float32).reshape(SHAPES[self.name])
        found = self.session.run(None, {"x": x})[0]
        return Response(found.tobytes(), media_type="application/octet-stream")

    def ModelInfer(self, request):  # noqa: N802
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(SHAPES[self.name])
        found = self.session.run(None, {"x": x})[0]
        answer = service_pb2.ModelInferResponse(model_name=self.name, id=request.id)
        answer.outputs.add(name="y", datatype="FP32", shape=found.shape)
        answer.raw_output_contents.append(found.tobytes())
        return answer


def routed(name, seconds=30):
    """Wait until the front end knows a route: `serve.run` returns before."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{HTTP}/{name}", b"", timeout=5)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                return
        except OSError:
            pass
        time.sleep(0.2)


ray.init(
    num_cpus=2,
    include_dashboard=False,
    log_to_driver=False,
    object_store_memory=200 << 20,
    configure_logging=False,
)
grpc = None if HAPROXY else gRPCOptions(port=int(GRPC), grpc_servicer_functions=[SERVICER])
serve.start(http_options={"host": "127.0.0.1", "port": int(HTTP)}, grpc_options=grpc)
for path in sorted(Path(FOLDER).resolve().glob("*.onnx")):
    application = Served.bind(str(path))
    serve.run(application, name=path.stem, route_prefix=f"/{path.stem}")
for path in sorted(Path(FOLDER).resolve().glob("*.onnx")):
    routed(path.stem)
print("ROUTED", flush=True)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
serve.shutdown()
ray.shutdown()
