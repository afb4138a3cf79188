"""Programs run on the production scheduler, in virtual or in real time."""
