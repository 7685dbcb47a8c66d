"""What `headwater.envs.check_env` asks of an env: one module for each kind of env, and what they share."""
