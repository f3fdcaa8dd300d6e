"""The gRPC front: the Open Inference Protocol's service on one port."""

import os

# What gRPC's core writes to stderr, such as a line for every handshake that fails, is no log of
# ours. It is read once, when the first object of gRPC is made.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
