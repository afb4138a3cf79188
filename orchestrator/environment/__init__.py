"""Workspaces: a run's files and shell, checkpointed, forked, rewound and merged with it."""
