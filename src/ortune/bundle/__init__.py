"""One file that carries a tuned model, its settings, its fall-back and the evidence."""
