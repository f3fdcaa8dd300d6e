"""The gRPC front: the Open Inference Protocol's service on one port."""
