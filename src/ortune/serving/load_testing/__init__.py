"""Load tests of inference servers: closed and open loops, sweeps over levels, the knee."""
