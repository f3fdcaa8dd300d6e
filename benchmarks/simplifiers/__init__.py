"""Other simplifiers beside ortune's exact transforms: nodes, speed, cost, broken files."""
