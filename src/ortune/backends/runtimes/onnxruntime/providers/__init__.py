"""Execution providers beside the CPU's: what each demands of a session, and its devices."""
