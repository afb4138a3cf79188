"""Policies x loads x seeds: experiments spread over processes, cached and drawn."""
