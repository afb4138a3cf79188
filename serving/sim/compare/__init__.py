"""Policies x loads x seeds: experiments run in parallel processes, cached and plotted."""
