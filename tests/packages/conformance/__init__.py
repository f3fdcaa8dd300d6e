"""One script of valid, odd and wrong requests, put to ours and to the real Triton."""
