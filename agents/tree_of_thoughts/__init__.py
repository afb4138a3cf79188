"""Tree of Thoughts: search for a solution step by step, with a model as guide and a deadline."""
