"""CALM, the version of this project: admission by value density, then least slack."""
