"""What the prefix cache holds, and its picture."""
