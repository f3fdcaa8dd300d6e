"""Conversion to float16 and bfloat16, and what must stay float32."""
