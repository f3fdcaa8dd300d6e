"""Models behind the Open Inference Protocol v2: HTTP and gRPC in one process and loop."""
