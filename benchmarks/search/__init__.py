"""Tables of every plan measured, and policies replayed on them."""
