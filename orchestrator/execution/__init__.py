"""The execution of one step or call of a run: context, replay, deadline, recorded outcome."""
