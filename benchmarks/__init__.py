"""What this project claims in numbers, measured side by side with what people use instead."""
