"""What a run looks like to a person: its timeline as text and as a picture, its progress. Pure."""
