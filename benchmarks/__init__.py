"""Speed and memory, against other libraries."""
