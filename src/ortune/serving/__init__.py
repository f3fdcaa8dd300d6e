"""A model server of the Open Inference Protocol, and what puts load on one."""
