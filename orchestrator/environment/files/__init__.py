"""The files of a state: scanned, compared, stored and laid out again."""
