"""Records -> lines and tables of text. Pure: reads and prints nothing."""
