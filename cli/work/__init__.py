"""What commands do, apart from options and output: checks, runs, fits, comparisons."""
