"""What past runs teach: pattern library, stage deadlines, length models."""
