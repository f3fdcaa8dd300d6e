"""The name by which tritonclient's messages know their module: Ray pickles them by it."""

from tritonclient.grpc.service_pb2 import *  # noqa: F403
