"""Byte layouts of frames and rows, and the functions that make and read them."""
