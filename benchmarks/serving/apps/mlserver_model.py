"""MLServer's runtime for one file."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from opened import session


class Served(MLModel):
    async def load(self) -> bool:
        self.session = session(self.settings.parameters.uri)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        (found,) = self.session.run(None, feeds)
        output = NumpyCodec.encode_output("y", found)
        return InferenceResponse(id=payload.id, model_name=self.name, outputs=[output])
