"""What stands behind the config classes: typed settings, their errors, merging, and what became of former names."""
