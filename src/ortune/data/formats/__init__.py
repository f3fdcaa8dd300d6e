"""Formats of samples and labels beside arrays and images: sound, tables, datasets, COCO."""
