"""Facts of one model: operators, FLOPs, bytes, data flow, weights."""
