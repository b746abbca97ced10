"""Tools in bodies: functions, texts of a grammar, and namespaces of them."""
