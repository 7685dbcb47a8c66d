"""How things reach the disk: whole files or none, append-only logs, state trees as JSON and tensors."""
