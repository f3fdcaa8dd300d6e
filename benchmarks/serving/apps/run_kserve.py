"""KServe's Python server: a `Model` a file. Arguments: folder, HTTP port, gRPC port."""

import sys

FOLDER, HTTP, GRPC = sys.argv[1:4]
del sys.argv[1:]  # the server reads the command line itself

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer  # noqa: E402
from opened import sessions  # noqa: E402


class Served(Model):
    def __init__(self, name, session):
        super().__init__(name)
        self.session, self.ready = session, True

    def predict(self, payload: InferRequest, headers=None, response_headers=None):
        feeds = {one.name: one.as_numpy() for one in payload.inputs}
        (found,) = self.session.run(None, feeds)
        output = InferOutput("y", list(found.shape), "FP32")
        output.set_data_from_numpy(found, binary_data=True)
        return InferResponse(payload.id, self.name, [output])


models = [Served(name, one) for name, one in sessions(FOLDER).items()]
ModelServer(
    http_port=int(HTTP),
    grpc_port=int(GRPC),
    workers=1,
    enable_docs_url=False,
    enable_latency_logging=False,
).start(models)
