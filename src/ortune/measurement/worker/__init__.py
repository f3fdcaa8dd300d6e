"""The worker process: loads one job and answers commands on its input."""
