"""Models made of a part of another one."""
