"""LitServe: an API a file, in a JSON of its own. Arguments: folder, HTTP port."""

import sys
from pathlib import Path

import litserve as ls
import numpy as np
from opened import session


class Served(ls.LitAPI):
    def __init__(self, path):
        super().__init__(api_path=f"/{Path(path).stem}")
        self.path = path

    def setup(self, device):
        self.session = session(self.path)

    def decode_request(self, request):
        return np.asarray(request["data"], np.float32).reshape(request["shape"])

    def predict(self, x):
        return self.session.run(None, {"x": x})[0]

    def encode_response(self, output):
        return {"data": output.ravel().tolist(), "shape": output.shape}


if __name__ == "__main__":
    apis = [Served(str(path)) for path in sorted(Path(sys.argv[1]).glob("*.onnx"))]
    server = ls.LitServer(apis, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[2]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="error",
        access_log=False,
    )
