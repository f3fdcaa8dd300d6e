"""MLServer: its folder of settings, then its own command. Arguments as for the others.

No parallel workers: for models this small they only cost.
"""

import json
import os
import sys
from pathlib import Path
from tempfile import mkdtemp

folder, http, grpc, metrics = sys.argv[1:5]
place = Path(mkdtemp(prefix="mlserver-"))
settings = {
    "host": "127.0.0.1",
    "http_port": int(http),
    "grpc_port": int(grpc),
    "metrics_port": int(metrics),
    "parallel_workers": 0,
    "grpc_max_message_length": 64 << 20,
}
(place / "settings.json").write_text(json.dumps(settings))
for path in Path(folder).resolve().glob("*.onnx"):
    (place / path.stem).mkdir()
    model = {
        "name": path.stem,
        "implementation": "mlserver_model.Served",
        "parameters": {"uri": str(path)},
    }
    (place / path.stem / "model-settings.json").write_text(json.dumps(model))
os.environ["PYTHONPATH"] = str(Path(__file__).parent)
command = Path(sys.executable).with_name("mlserver")
os.execv(command, [str(command), "start", str(place)])
