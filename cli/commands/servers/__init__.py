"""The commands that serve: a model, and a gateway to several servers."""
