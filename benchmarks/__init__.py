"""Measures the numbers that this project claims, side by side with what people use instead."""
