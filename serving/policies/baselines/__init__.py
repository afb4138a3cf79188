"""Policies of other papers, to compare CALM with."""
