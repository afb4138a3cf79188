"""The tasks that `orchestrate run tree-of-thoughts` knows."""
