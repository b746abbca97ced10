"""What a caller asks of one request, checked where it is given."""
