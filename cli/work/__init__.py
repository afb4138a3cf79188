"""What commands do, apart from their options and their output."""
