"""The files and processes of one workspace: by an overlay in a sandbox, or by copies."""
